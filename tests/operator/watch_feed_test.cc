#include "operator/kube/watch_feed.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "operator/kube/api_error.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/json.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

class WatchFeedTest : public ::testing::Test {
 protected:
  WatchFeedTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.ring.events = 8;
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    parameters_.kind = Kind::kConfigMap;
    options_.clock = &clock_;
    options_.table = [](Kind, const ObjectList& list) {
      return R"({"kind":"Table","metadata":{"name":")" + list.items[0]->meta.name.name + R"("}})";
    };
  }
  std::unique_ptr<WatchFeed> Open() {
    auto feed = WatchFeed::Open(*api_, parameters_, options_, nullptr);
    EXPECT_TRUE(feed.ok()) << feed.status().ToString();
    return feed.ok() ? std::move(feed).value() : nullptr;
  }
  // The next lines as "TYPE name", or "TYPE version" of bookmarks; "end" when the feed is over.
  std::vector<std::string> Next(WatchFeed& feed) {
    std::string text;
    const bool more = feed.Next(&text);
    std::vector<std::string> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line, nullptr, false);
      EXPECT_TRUE(event.is_object()) << line;
      last_ = event["object"];
      const Json* metadata = Find(last_, "metadata");
      const std::string type = StringAt(event, "type");
      out.push_back(type + " " +
                    (type == "BOOKMARK" ? StringAt(*metadata, "resourceVersion")
                                        : StringAt(*metadata, "name")));
    }
    if (!more) out.emplace_back("end");
    return out;
  }
  void Make(const std::string& name) {
    ASSERT_TRUE(api_->Create(Kind::kConfigMap, ConfigMapJson(name, "1")).ok());
  }
  std::uint64_t Now() { return api_->List(Kind::kNode, "")->resource_version; }
  using Lines = std::vector<std::string>;

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  WatchParameters parameters_;
  WatchFeed::Options options_;
  Json last_;
};

TEST_F(WatchFeedTest, SendsALineForEachEvent) {
  const auto feed = Open();
  EXPECT_EQ(Next(*feed), Lines());
  Make("a");
  ASSERT_TRUE(api_->Delete(Kind::kConfigMap, {"default", "a"}, {}).ok());
  EXPECT_EQ(Next(*feed), (Lines{"ADDED a", "DELETED a"}));
  EXPECT_EQ(StringAt(last_["metadata"], "resourceVersion"), std::to_string(Now()))
      << "the version of the deletion";
}

TEST_F(WatchFeedTest, InitialEventsEndWithABookmark) {
  Make("a");
  parameters_.from.initial_events = true;
  parameters_.initial_end = true;
  parameters_.bookmarks = true;
  const auto feed = Open();
  EXPECT_EQ(Next(*feed), (Lines{"ADDED a", "BOOKMARK " + std::to_string(Now())}));
  EXPECT_EQ(last_["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
  Make("b");
  EXPECT_EQ(Next(*feed), Lines{"ADDED b"});
}

TEST_F(WatchFeedTest, BookmarksComeOnceAMinuteAndWhenAskedFor) {
  parameters_.bookmarks = true;
  const auto feed = Open();
  ASSERT_TRUE(api_->Create(Kind::kNode, NodeJson("n")).ok());
  EXPECT_EQ(Next(*feed), Lines());
  EXPECT_EQ(feed->next_due() - clock_.Now(), std::chrono::minutes(1));
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_EQ(Next(*feed), Lines{"BOOKMARK " + std::to_string(Now())});
  EXPECT_EQ(StringAt(last_, "kind"), "ConfigMap");
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_EQ(Next(*feed), Lines()) << "nothing new to tell";
  parameters_.bookmarks = false;
  const auto plain = Open();
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_EQ(Next(*plain), Lines());
}

TEST_F(WatchFeedTest, EndsAtItsTimeout) {
  parameters_.timeout = std::chrono::seconds(5);
  parameters_.bookmarks = true;
  const auto feed = Open();
  Make("a");
  EXPECT_EQ(Next(*feed), Lines{"ADDED a"});
  EXPECT_EQ(feed->next_due() - clock_.Now(), std::chrono::seconds(5));
  clock_.Advance(std::chrono::seconds(5));
  EXPECT_EQ(Next(*feed), (Lines{"BOOKMARK " + std::to_string(Now()), "end"}));
}

TEST_F(WatchFeedTest, WhoFallsBehindIsToldInTheStream) {
  const auto feed = Open();
  for (int i = 0; i < 10; ++i) Make("m" + std::to_string(i));
  EXPECT_EQ(Next(*feed), (Lines{"ERROR ", "end"}));
  EXPECT_EQ(last_["code"], 410);
  EXPECT_EQ(StringAt(last_, "reason"), "Expired");
  parameters_.from.resource_version = 1;
  EXPECT_TRUE(IsGone(WatchFeed::Open(*api_, parameters_, options_, nullptr).status()));
}

TEST_F(WatchFeedTest, HandsOutPiecesOfBoundedSize) {
  const std::string big(WatchFeed::kPiece / 2, 'x');
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(api_->Create(Kind::kConfigMap, ConfigMapJson("m" + std::to_string(i), big)).ok());
  }
  parameters_.from.initial_events = true;
  const auto feed = Open();
  std::size_t pieces = 0;
  std::string text;
  do {
    text.clear();
    ASSERT_TRUE(feed->Next(&text));
    EXPECT_LT(text.size(), 2 * WatchFeed::kPiece);
    if (!text.empty()) ++pieces;
  } while (!text.empty());
  EXPECT_GE(pieces, 3U);
}

TEST_F(WatchFeedTest, ShowsTables) {
  parameters_.form = AnswerForm::kTable;
  const auto feed = Open();
  Make("a");
  EXPECT_EQ(Next(*feed), Lines{"ADDED a"});
  EXPECT_EQ(StringAt(last_, "kind"), "Table");
}

}  // namespace
}  // namespace kvfabric::kube
