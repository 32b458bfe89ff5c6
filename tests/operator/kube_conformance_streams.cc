// The rules of lists and watches.

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "tests/operator/kube_conformance.h"

namespace kvfabric::kube {
namespace {

std::string Names(const ObjectList& list) {
  std::string out;
  for (const ObjectPtr& object : list.items) {
    out += (out.empty() ? "" : " ") + object->meta.name.name;
  }
  return out;
}

std::string Labels(const std::string& labels) { return R"(,"labels":{)" + labels + "}"; }

}  // namespace

TEST_P(KubeConformance, ListGivesWhatIsThereUnderOneVersion) {
  const Scope scope{target().ns(), "app=list", ""};
  for (const char* name : {"b", "a", "c"}) {
    ASSERT_TRUE(
        api().Create(Kind::kConfigMap, ConfigMap(name, "{}", Labels(R"("app":"list")"))).ok());
  }
  const ObjectPtr last = *api().Get(Kind::kConfigMap, Name("c"));
  const ObjectList list = ListAll(Kind::kConfigMap, scope);
  EXPECT_EQ(Names(list), "a b c");
  EXPECT_GE(list.resource_version, last->meta.resource_version);
  EXPECT_EQ(Names(ListAll(Kind::kConfigMap, scope, last->meta.resource_version)), "a b c")
      << "at least as new as what was written";
  const auto blocking = api().List(Kind::kConfigMap, target().other_ns());
  ASSERT_TRUE(blocking.ok());
  for (const ObjectPtr& object : blocking->items) {
    EXPECT_EQ(object->meta.name.ns, target().other_ns());
  }
}

TEST_P(KubeConformance, VersionOfTheFutureIsRefused) {
  const ObjectPtr made = *api().Create(Kind::kConfigMap, ConfigMap("a", "{}"));
  const auto signal = std::make_shared<Signal>();
  auto stream =
      api().StartList(Kind::kConfigMap, {target().ns(), "", ""},
                      made->meta.resource_version + 1'000'000'000, [signal] { signal->Set(); });
  Status ended = stream.status();
  while (stream.ok() && ended.ok()) {
    const Result<ListBatch> batch = (*stream)->Poll();
    ended = batch.status();
    ASSERT_TRUE(!batch.ok() || !batch->done) << "a list of the future";
    if (batch.ok()) {
      ASSERT_TRUE(signal->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    }
  }
  EXPECT_TRUE(IsResourceVersionTooLarge(ended)) << ended.ToString();
}

TEST_P(KubeConformance, SelectorsSelect) {
  const auto make = [&](const std::string& name, const std::string& labels) {
    ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap(name, "{}", Labels(labels))).ok());
  };
  make("a", R"("app":"one","tier":"x","suite":"s")");
  make("b", R"("app":"two","suite":"s")");
  make("c", R"("app":"three","tier":"y","suite":"s")");
  const auto select = [&](const std::string& labels, const std::string& fields = "") {
    return Names(ListAll(Kind::kConfigMap, {target().ns(), "suite=s," + labels, fields}));
  };
  EXPECT_EQ(select("app=one"), "a");
  EXPECT_EQ(select("app==one"), "a");
  EXPECT_EQ(select("app!=one"), "b c");
  EXPECT_EQ(select("app in (one, two)"), "a b");
  EXPECT_EQ(select("app notin (one,two),tier"), "c");
  EXPECT_EQ(select("tier notin (x)"), "b c") << "a label that is not there is not in any set";
  EXPECT_EQ(select("!tier"), "b");
  EXPECT_EQ(select("tier"), "a c");
  EXPECT_EQ(select("tier", "metadata.name=c"), "c");
  EXPECT_EQ(select("tier", "metadata.name!=c"), "a");
  EXPECT_EQ(select("suite", "metadata.namespace=" + target().ns()), "a b c");
  EXPECT_EQ(Names(ListAll(Kind::kConfigMap, {"", "suite=s", "metadata.name=b"})), "b");
}

TEST_P(KubeConformance, WatchTellsInOrderAndOfNothingElse) {
  Watching watching = StartWatch(Kind::kConfigMap, {target().ns(), "", ""});
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", "{}")).ok());
  ASSERT_TRUE(api().Create(Kind::kPool, Pool("p")).ok()) << "of another kind: not told";
  std::string elsewhere = ConfigMap("x", "{}");
  elsewhere.replace(elsewhere.find(target().ns()), target().ns().size(), target().other_ns());
  ASSERT_TRUE(api().Create(Kind::kConfigMap, elsewhere).ok()) << "elsewhere: not told";
  ASSERT_TRUE(api().Update(Kind::kConfigMap, ConfigMap("a", R"({"k":"1"})")).ok());
  ASSERT_TRUE(api().Update(Kind::kConfigMap, ConfigMap("a", R"({"k":"1"})")).ok())
      << "changes nothing: not told";
  const ObjectPtr before = *api().Get(Kind::kConfigMap, Name("a"));
  ASSERT_TRUE(api().Delete(Kind::kConfigMap, Name("a"), {}).ok());
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("z", "{}")).ok());
  PollEvents(watching, 4);
  ASSERT_EQ(Story(watching.events), "ADDED a, MODIFIED a, DELETED a, ADDED z");
  std::uint64_t last = 0;
  for (const WatchEvent& event : watching.events) {
    EXPECT_GT(event.object->meta.resource_version, last);
    last = event.object->meta.resource_version;
  }
  const WatchEvent& deleted = watching.events[2];
  EXPECT_GT(deleted.object->meta.resource_version, before->meta.resource_version)
      << "under the version of the deletion";
  EXPECT_EQ((*ParseJson(deleted.object->json))["data"]["k"], "1") << "as it was";
  EXPECT_EQ(watching.resource_version, last);
}

TEST_P(KubeConformance, WatchGoesOnWhereItEnded) {
  const ObjectPtr a = *api().Create(Kind::kConfigMap, ConfigMap("a", "{}"));
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("b", "{}")).ok());
  Watching watching =
      StartWatch(Kind::kConfigMap, {target().ns(), "", ""}, WatchFrom{a->meta.resource_version});
  PollEvents(watching, 1);
  EXPECT_EQ(Story(watching.events), "ADDED b");
}

TEST_P(KubeConformance, SelectedObjectsComeAndGoWithTheirLabels) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", "{}")).ok());
  Watching watching = StartWatch(Kind::kConfigMap, {target().ns(), "app in (kvf)", ""});
  const auto label = [&](const std::string& data, const std::string& labels) {
    ASSERT_TRUE(api().Update(Kind::kConfigMap, ConfigMap("a", data, labels)).ok());
  };
  label(R"({"k":"0"})", "");  // outside: not told
  label(R"({"k":"1"})", Labels(R"("app":"kvf")"));
  label(R"({"k":"2"})", Labels(R"("app":"kvf")"));
  label(R"({"k":"3"})", Labels(R"("app":"other")"));
  label(R"({"k":"4"})", Labels(R"("app":"kvf")"));
  ASSERT_TRUE(api().Delete(Kind::kConfigMap, Name("a"), {}).ok());
  PollEvents(watching, 5);
  ASSERT_EQ(Story(watching.events), "ADDED a, MODIFIED a, DELETED a, ADDED a, DELETED a");
  const WatchEvent& left = watching.events[2];
  EXPECT_EQ((*ParseJson(left.object->json))["data"]["k"], "2") << "as it was while selected";
  EXPECT_GT(left.object->meta.resource_version, watching.events[1].object->meta.resource_version);
}

TEST_P(KubeConformance, WatchOfOneName) {
  Watching watching = StartWatch(Kind::kConfigMap, {target().ns(), "", "metadata.name=b"});
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", "{}")).ok());
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("b", "{}")).ok());
  PollEvents(watching, 1);
  EXPECT_EQ(Story(watching.events), "ADDED b");
}

TEST_P(KubeConformance, WatchWithoutEventsMovesOn) {
  Watching watching = StartWatch(Kind::kConfigMap, {target().ns(), "app=none", ""});
  const ObjectPtr other = *api().Create(Kind::kConfigMap, ConfigMap("a", "{}"));
  const auto started = std::chrono::steady_clock::now();
  PollUntil(watching, [&](const Watching& w) {
    return w.resource_version >= other->meta.resource_version ||
           std::chrono::steady_clock::now() - started > target().bookmark_within();
  });
  EXPECT_GE(watching.resource_version, other->meta.resource_version);
  EXPECT_TRUE(watching.events.empty()) << Story(watching.events);
}

TEST_P(KubeConformance, InitialEventsComeFirstOrAreRefused) {
  const Scope scope{target().ns(), "app=initial", ""};
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(
        api().Create(Kind::kConfigMap, ConfigMap(name, "{}", Labels(R"("app":"initial")"))).ok());
  }
  Watching watching = StartWatch(Kind::kConfigMap, scope, WatchFrom{0, true});
  PollUntil(watching, [](const Watching& w) { return w.initial_done; });
  if (!watching.ended.ok()) {
    EXPECT_TRUE(watching.ended.code() == StatusCode::kUnimplemented || IsInvalid(watching.ended))
        << watching.ended.ToString();
    EXPECT_EQ(Names(ListAll(Kind::kConfigMap, scope)), "a b") << "the way back: a list";
    return;
  }
  std::string story = Story(watching.events);
  EXPECT_TRUE(story == "ADDED a, ADDED b" || story == "ADDED b, ADDED a") << story;
  EXPECT_GE(watching.resource_version, watching.events.back().object->meta.resource_version);
  ASSERT_TRUE(api().Delete(Kind::kConfigMap, Name("a"), {}).ok());
  PollEvents(watching, 3);
  EXPECT_EQ(Story({watching.events.back()}), "DELETED a");
}

TEST_P(KubeConformance, ExpiredVersionIsGone) {
  // Where no number of events is enough, pools are younger than the cluster: version 1 is from
  // before the API began to keep their history.
  std::uint64_t version = 1;
  Kind kind = Kind::kPool;
  if (target().events_kept() > 0) {
    kind = Kind::kConfigMap;
    version = (*api().Create(Kind::kConfigMap, ConfigMap("a", "{}")))->meta.resource_version;
    for (int i = 0; i <= target().events_kept() + 1; ++i) {
      ASSERT_TRUE(
          api()
              .Update(Kind::kConfigMap, ConfigMap("a", R"({"k":")" + std::to_string(i) + R"("})"))
              .ok());
    }
  }
  Watching watching = StartWatch(kind, {target().ns(), "", ""}, WatchFrom{version, false});
  PollUntil(watching, [](const Watching& w) { return !w.ended.ok() || !w.events.empty(); });
  EXPECT_TRUE(IsGone(watching.ended)) << watching.ended.ToString() << Story(watching.events);
}

}  // namespace kvfabric::kube
