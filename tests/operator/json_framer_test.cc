#include "operator/kube/json_framer.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfabric::kube {
namespace {

struct Cut {
  std::vector<std::string> objects;
  Status status;
  std::string envelope;
};

// Feeds `text` in two pieces, then ends the body.
template <typename Framer>
Cut Frame(std::string_view text, std::size_t split, FramerLimits limits = {}) {
  Cut out;
  Framer framer(
      [&](std::string object) {
        out.objects.push_back(std::move(object));
        return Status::Ok();
      },
      limits);
  out.status = framer.Feed(text.substr(0, split));
  if (out.status.ok()) out.status = framer.Feed(text.substr(split));
  if (out.status.ok()) out.status = framer.Finish();
  if constexpr (std::is_same_v<Framer, ListFramer>) out.envelope = framer.envelope();
  return out;
}

constexpr std::string_view kEvents = R"({"type":"ADDED","object":{"a":"}{\"\\","b":[1,{"c":"]"}]}})"
                                     "\n \r\n\t"
                                     R"({"type":"DELETED","object":{}})"
                                     R"({"type":"BOOKMARK","object":{"é":"\u007d"}})"
                                     "\n";

TEST(EventFramer, IsTheSameCutAtEveryByte) {
  for (std::size_t split = 0; split <= kEvents.size(); ++split) {
    const Cut cut = Frame<EventFramer>(kEvents, split);
    ASSERT_TRUE(cut.status.ok()) << split << ": " << cut.status.ToString();
    ASSERT_EQ(cut.objects.size(), 3U) << split;
    EXPECT_EQ(cut.objects[0], kEvents.substr(0, kEvents.find('\n')));
    EXPECT_EQ(cut.objects[1], R"({"type":"DELETED","object":{}})");
  }
}

TEST(EventFramer, TakesSingleBytes) {
  std::vector<std::string> objects;
  EventFramer framer([&](std::string object) {
    objects.push_back(std::move(object));
    return Status::Ok();
  });
  for (const char c : kEvents) ASSERT_TRUE(framer.Feed({&c, 1}).ok());
  EXPECT_TRUE(framer.Finish().ok());
  EXPECT_EQ(objects.size(), 3U);
}

TEST(EventFramer, CutOffAnywhereIsAnError) {
  const std::string event = R"({"type":"ADDED","object":{"a":"}"}})";
  for (std::size_t size = 1; size < event.size(); ++size) {
    const Cut cut = Frame<EventFramer>(std::string_view(event).substr(0, size), 0);
    EXPECT_EQ(cut.status.code(), StatusCode::kUnavailable) << size;
    EXPECT_TRUE(cut.objects.empty());
  }
  EXPECT_TRUE(Frame<EventFramer>("", 0).status.ok());
}

TEST(EventFramer, RefusesWhatIsNoSequenceOfObjects) {
  for (const std::string text :
       {"[1]", "{}x", "{]", "{\"a\":[}", "null", "\"{}\"", "{}}", "<html>"}) {
    for (std::size_t split = 0; split <= text.size(); ++split) {
      EXPECT_FALSE(Frame<EventFramer>(text, split).status.ok()) << text << " at " << split;
    }
  }
  EXPECT_FALSE(Frame<EventFramer>(std::string(65, '{'), 3).status.ok()) << "too deep";
}

TEST(EventFramer, BoundsOneObjectAndKeepsItsError) {
  const FramerLimits limits{.object_bytes = 16};
  EXPECT_TRUE(Frame<EventFramer>(R"({"a":1}{"a":12345678})", 3, limits).status.ok());
  EXPECT_EQ(Frame<EventFramer>(R"({"a":1}{"a":"1234567890"})", 3, limits).status.code(),
            StatusCode::kResourceExhausted);
  EventFramer framer([](const std::string&) { return Aborted("no more"); });
  EXPECT_EQ(framer.Feed("{}").code(), StatusCode::kAborted);
  EXPECT_EQ(framer.Feed("{}").code(), StatusCode::kAborted);
  EXPECT_EQ(framer.Finish().code(), StatusCode::kAborted);
}

constexpr std::string_view kList =
    R"( { "kind":"PodList", "apiVersion" : "v1","metadata":{"resourceVersion":"7","x":["]"]},)"
    R"("items" : [ {"a":"]},{"} , {"b":{"items":[{"c":1}]}}, {} ], "n":-1.5e3,"s":"}\"" } )"
    "\n";

TEST(ListFramer, IsTheSameCutAtEveryByte) {
  for (std::size_t split = 0; split <= kList.size(); ++split) {
    const Cut cut = Frame<ListFramer>(kList, split);
    ASSERT_TRUE(cut.status.ok()) << split << ": " << cut.status.ToString();
    ASSERT_EQ(cut.objects.size(), 3U) << split;
    EXPECT_EQ(cut.objects[0], R"({"a":"]},{"})");
    EXPECT_EQ(cut.objects[1], R"({"b":{"items":[{"c":1}]}})");
    EXPECT_EQ(cut.objects[2], "{}");
    EXPECT_NE(cut.envelope.find(R"("resourceVersion":"7")"), std::string::npos);
    EXPECT_NE(cut.envelope.find(R"("items":[])"), std::string::npos) << cut.envelope;
    EXPECT_NE(cut.envelope.find(R"("s":"}\"")"), std::string::npos) << cut.envelope;
  }
}

TEST(ListFramer, CutOffAnywhereIsNeverAShorterList) {
  const std::string text = R"({"kind":"PodList","items":[{"a":1},{"a":2}],"metadata":{}})";
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(Frame<ListFramer>(std::string_view(text).substr(0, size), size / 2).status.ok())
        << size;
  }
  EXPECT_TRUE(Frame<ListFramer>(text, 0).status.ok());
}

TEST(ListFramer, KnowsEmptyLists) {
  for (const std::string text : {R"({"items":[]})", R"({"items":null})", R"({"items": [ ] })"}) {
    const Cut cut = Frame<ListFramer>(text, 5);
    EXPECT_TRUE(cut.status.ok() && cut.objects.empty()) << text;
  }
}

TEST(ListFramer, RefusesWhatIsNoList) {
  for (const std::string text :
       {"", "[]", "{\"items\":[1]}", "{\"items\":[{}{}]}", "{\"items\":[{},]}", "{\"items\":[,{}]}",
        "{\"items\":{}}", "{\"items\":[],\"items\":[]}", "{\"items\":[]} x", "{\"items\":[]}{}",
        "{\"items\" []}", "{\"items\":[{]}]}", "{\"items\":null,\"items\":[{}]}"}) {
    for (std::size_t split = 0; split <= text.size(); ++split) {
      EXPECT_FALSE(Frame<ListFramer>(text, split).status.ok()) << text << " at " << split;
    }
  }
}

TEST(ListFramer, BoundsItemsAndWhatIsAroundThem) {
  const FramerLimits limits{.object_bytes = 10, .envelope_bytes = 30};
  EXPECT_TRUE(
      Frame<ListFramer>(R"({"items":[{"a":1},{"a":2},{"a":3},{"a":4}]})", 0, limits).status.ok());
  EXPECT_EQ(Frame<ListFramer>(R"({"items":[{"a":"1234567"}]})", 0, limits).status.code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(Frame<ListFramer>(R"({"kind":"PodList","apiVersion":"v1"})", 0, limits).status.code(),
            StatusCode::kResourceExhausted);
}

TEST(ForEachMember, GivesKeysAndValuesAsTheyStand) {
  std::vector<std::pair<std::string, std::string>> members;
  const auto keep = [&](std::string_view key, std::string_view value) {
    members.emplace_back(key, value);
  };
  ASSERT_TRUE(ForEachMember(R"( {"a" : {"x":"}"}, "b":[1, 2] ,"c":"\"","d":null } )", keep).ok());
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"a", R"({"x":"}"})"}, {"b", "[1, 2]"}, {"c", R"("\"")"}, {"d", "null"}};
  EXPECT_EQ(members, wanted);
  EXPECT_TRUE(ForEachMember("{}", keep).ok());
  for (const char* text : {"", "[]", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,}",
                           "{\"a\" 1}", "{\"a\":{", "{a:1}"}) {
    EXPECT_FALSE(ForEachMember(text, keep).ok()) << text;
  }
}

TEST(WithTypeMeta, AddsOnlyWhatIsMissing) {
  EXPECT_EQ(*WithTypeMeta(Kind::kDaemonSet, "{}"),
            R"({"kind":"DaemonSet","apiVersion":"apps/v1"})");
  EXPECT_EQ(*WithTypeMeta(Kind::kPod, R"( {"metadata":{"kind":"x"}})"),
            R"( {"kind":"Pod","apiVersion":"v1","metadata":{"kind":"x"}})");
  EXPECT_EQ(*WithTypeMeta(Kind::kPod, R"({"kind":"Pod"})"), R"({"apiVersion":"v1","kind":"Pod"})");
  const std::string whole = R"({"kind":"Other","apiVersion":"v9"})";
  EXPECT_EQ(*WithTypeMeta(Kind::kPod, whole), whole) << "wrong ones are for the reader to refuse";
}

}  // namespace
}  // namespace kvfabric::kube
