#include "tests/operator/kube_conformance.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/specs/shard_map_object.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric::kube {
namespace {

constexpr std::chrono::seconds kDeadline{20};

std::chrono::steady_clock::time_point Deadline() {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(kDeadline * TimeScale());
}

Json Root(const ObjectPtr& object) { return *ParseJson(object->json); }

}  // namespace

void Signal::Set() {
  MutexLock lock(mu_);
  set_ = true;
  changed_.NotifyAll();
}

bool Signal::Wait(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mu_);
  while (!set_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.WaitUntil(mu_, deadline);
  }
  set_ = false;
  return true;
}

std::string Story(const std::vector<WatchEvent>& events) {
  std::string out;
  for (const WatchEvent& event : events) {
    if (!out.empty()) out += ", ";
    out += event.type == EventType::kAdded      ? "ADDED "
           : event.type == EventType::kModified ? "MODIFIED "
                                                : "DELETED ";
    out += event.object->meta.name.name;
  }
  return out;
}

std::string KubeConformance::ConfigMap(const std::string& name, const std::string& data,
                                       const std::string& extra_metadata) const {
  return R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":")" + target_->ns() +
         R"(","name":")" + name + R"(")" + extra_metadata + R"(},"data":)" + data + "}";
}

std::string KubeConformance::Pool(const std::string& name, const std::string& extra_metadata,
                                  const std::string& spec, const std::string& status) const {
  std::string out =
      R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":{"namespace":")" +
      target_->ns() + R"(","name":")" + name + R"(")" + extra_metadata +
      R"(},"spec":{"tiers":[{"name":"dram","type":"DRAM","capacityPerNode":"64Mi"}])" + spec + "}";
  if (!status.empty()) out += R"(,"status":)" + status;
  return out + "}";
}

std::string KubeConformance::Guard(const ObjectPtr& object) {
  return R"(,"resourceVersion":")" + std::to_string(object->meta.resource_version) + R"(")";
}

ObjectList KubeConformance::ListAll(Kind kind, const Scope& scope,
                                    std::optional<std::uint64_t> not_older_than) {
  const auto signal = std::make_shared<Signal>();
  ObjectList out;
  auto stream = api().StartList(kind, scope, not_older_than, [signal] { signal->Set(); });
  if (!stream.ok()) {
    ADD_FAILURE() << stream.status().ToString();
    return out;
  }
  const auto deadline = Deadline();
  for (;;) {
    Result<ListBatch> batch = (*stream)->Poll();
    if (!batch.ok()) {
      ADD_FAILURE() << batch.status().ToString();
      return out;
    }
    std::move(batch->items.begin(), batch->items.end(), std::back_inserter(out.items));
    out.resource_version = batch->resource_version;
    if (batch->done) break;
    if (!signal->Wait(deadline)) {
      ADD_FAILURE() << "the list does not end";
      return out;
    }
  }
  std::sort(out.items.begin(), out.items.end(),
            [](const ObjectPtr& a, const ObjectPtr& b) { return a->meta.name < b->meta.name; });
  return out;
}

KubeConformance::Watching KubeConformance::StartWatch(Kind kind, const Scope& scope,
                                                      std::optional<WatchFrom> from) {
  Watching out;
  if (!from.has_value()) from = WatchFrom{ListAll(kind, scope).resource_version, false};
  auto stream = api().Watch(kind, scope, *from, [signal = out.signal] { signal->Set(); });
  if (stream.ok()) {
    out.stream = std::move(stream).value();
  } else {
    out.ended = stream.status();
  }
  return out;
}

void KubeConformance::PollUntil(Watching& watching,
                                const std::function<bool(const Watching&)>& enough) {
  const auto deadline = Deadline() + target().bookmark_within();
  while (watching.stream != nullptr && !enough(watching)) {
    const Result<WatchBatch> batch = watching.stream->Poll();
    if (!batch.ok()) {
      watching.ended = batch.status();
      watching.stream.reset();
      return;
    }
    watching.events.insert(watching.events.end(), batch->events.begin(), batch->events.end());
    watching.resource_version = batch->resource_version;
    watching.initial_done = watching.initial_done || batch->initial_done;
    if (enough(watching)) return;
    if (batch->events.empty() && !watching.signal->Wait(deadline)) {
      ADD_FAILURE() << "nothing more comes after: " << Story(watching.events);
      return;
    }
  }
}

TEST_P(KubeConformance, CreateGivesWhatTheApiOwns) {
  const auto made =
      api().Create(Kind::kConfigMap, ConfigMap("a", R"({"k":"1"})", R"(,"generation":7)"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->meta.uid.size(), 36U);
  EXPECT_GT((*made)->meta.resource_version, 0U);
  EXPECT_FALSE((*made)->meta.creation_timestamp.empty());
  const auto read = api().Get(Kind::kConfigMap, Name("a"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(Root(*read)["metadata"], Root(*made)["metadata"]);
  EXPECT_EQ((*api().Create(Kind::kPool, Pool("p")))->meta.generation, 1);
}

TEST_P(KubeConformance, NamesAreTakenOnceAndChecked) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", "{}")).ok());
  EXPECT_TRUE(
      IsAlreadyExists(api().Create(Kind::kConfigMap, ConfigMap("a", R"({"k":"2"})")).status()));
  for (const char* bad : {"A", "a_b", "-a", "a..b"}) {
    EXPECT_TRUE(IsInvalid(api().Create(Kind::kConfigMap, ConfigMap(bad, "{}")).status())) << bad;
  }
  EXPECT_TRUE(IsNotFound(api().Get(Kind::kConfigMap, Name("b")).status()));
  EXPECT_TRUE(IsNotFound(api().Update(Kind::kConfigMap, ConfigMap("b", "{}")).status()));
}

TEST_P(KubeConformance, WriteNeedsTheVersionThatWasRead) {
  const ObjectPtr first = *api().Create(Kind::kPool, Pool("p"));
  EXPECT_TRUE(IsInvalid(api().Update(Kind::kPool, Pool("p")).status()))
      << "a custom resource is never updated blindly";
  const auto second = api().Update(Kind::kPool, Pool("p", Guard(first), R"(,"paused":true)"));
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_GT((*second)->meta.resource_version, first->meta.resource_version);
  const Status stale = api().Update(Kind::kPool, Pool("p", Guard(first))).status();
  EXPECT_TRUE(IsConflict(stale)) << stale.ToString();
  EXPECT_FALSE(IsFieldConflict(stale));
  EXPECT_TRUE(IsConflict(
      api().UpdateStatus(Kind::kPool, Pool("p", Guard(first), "", R"({"epoch":3})")).status()));
  const auto blind = api().Update(Kind::kConfigMap, ConfigMap("c", "{}"));
  EXPECT_TRUE(IsNotFound(blind.status()));
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("c", "{}")).ok());
  EXPECT_TRUE(api().Update(Kind::kConfigMap, ConfigMap("c", R"({"k":"1"})")).ok())
      << "built-in kinds may be";
}

TEST_P(KubeConformance, AnotherUidIsAConflict) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", "{}")).ok());
  EXPECT_TRUE(IsConflict(
      api().Update(Kind::kConfigMap, ConfigMap("a", "{}", R"(,"uid":"another")")).status()));
}

TEST_P(KubeConformance, StatusAndSpecAreWrittenApart) {
  ObjectPtr pool = *api().Create(Kind::kPool, Pool("p", "", "", R"({"epoch":1})"));
  EXPECT_FALSE(Root(pool).contains("status")) << "a status at creation is dropped";
  pool = *api().UpdateStatus(Kind::kPool,
                             Pool("p", Guard(pool), R"(,"paused":true)", R"({"epoch":7})"));
  EXPECT_EQ(Root(pool)["status"]["epoch"], 7);
  EXPECT_EQ(Root(pool)["spec"]["paused"], false);
  EXPECT_EQ(pool->meta.generation, 1);
  pool = *api().Update(Kind::kPool, Pool("p", Guard(pool) + R"(,"labels":{"l":"v"})"));
  EXPECT_EQ(pool->meta.generation, 1) << "labels are not spec";
  pool = *api().Update(Kind::kPool, Pool("p", Guard(pool), R"(,"paused":true)", R"({"epoch":9})"));
  EXPECT_EQ(pool->meta.generation, 2);
  EXPECT_EQ(Root(pool)["status"]["epoch"], 7);
}

TEST_P(KubeConformance, WriteThatChangesNothingLeavesTheVersion) {
  const ObjectPtr made = *api().Create(Kind::kPool, Pool("p"));
  const auto same = api().Update(Kind::kPool, Pool("p", Guard(made)));
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_EQ((*same)->meta.resource_version, made->meta.resource_version);
  const auto patched =
      api().Patch(Kind::kPool, Name("p"), PatchType::kMerge, R"({"spec":{"paused":false}})", false);
  ASSERT_TRUE(patched.ok()) << patched.status().ToString();
  EXPECT_EQ((*patched)->meta.resource_version, made->meta.resource_version);
}

TEST_P(KubeConformance, DeleteObeysPreconditions) {
  const ObjectPtr made = *api().Create(Kind::kConfigMap, ConfigMap("a", "{}"));
  EXPECT_TRUE(IsConflict(api().Delete(Kind::kConfigMap, Name("a"), {"another", 0})));
  EXPECT_TRUE(
      IsConflict(api().Delete(Kind::kConfigMap, Name("a"), {"", made->meta.resource_version + 1})));
  EXPECT_TRUE(
      api()
          .Delete(Kind::kConfigMap, Name("a"), {made->meta.uid, made->meta.resource_version})
          .ok());
  EXPECT_TRUE(IsNotFound(api().Delete(Kind::kConfigMap, Name("a"), {})));
}

TEST_P(KubeConformance, FaultsNameTheirFields) {
  const auto refused = api().Create(Kind::kPool, Pool("p", "", R"(,"sharding":{"slots":1000})"));
  ASSERT_TRUE(IsInvalid(refused.status())) << refused.status().ToString();
  EXPECT_NE(refused.status().message().find("spec.sharding.slots"), std::string::npos)
      << refused.status().message();
}

TEST_P(KubeConformance, DefaultsAreFilledIn) {
  const ObjectPtr made = *api().Create(Kind::kPool, Pool("p"));
  EXPECT_EQ(Root(made)["spec"]["sharding"]["slots"], 16384);
  EXPECT_EQ(Root(made)["spec"]["tiers"][0]["highWatermarkPercent"], 90);
}

TEST_P(KubeConformance, ShardMapOfAThousandMembersGoesRound) {
  const ObjectPtr pool = *api().Create(Kind::kPool, Pool("big"));
  ShardMap map;
  map.pool_uid = pool->meta.uid;
  map.term = 1;
  map.epoch = 1;
  for (int i = 0; i < 1000; ++i) {
    const std::string n = std::to_string(i);
    map.members.push_back({"node-" + n, "11111111-2222-3333-4444-" + std::string(12, '5'),
                           "10.0.0.1", 7070, 7071, "zone-" + std::to_string(i % 3),
                           std::uint64_t{64} << 30U, MemberState::kActive});
  }
  for (std::size_t i = 0; i < std::size_t{map.slot_count} * map.owners_per_slot; ++i) {
    map.table.push_back(static_cast<MemberIndex>(i * 7 % map.members.size()));
  }
  Watching watching = StartWatch(Kind::kShardMap, {target().ns(), "", ""});
  const auto made = api().Create(Kind::kShardMap, *EncodeShardMap(pool->meta, map, 0));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  map.epoch = 2;
  map.members[17].state = MemberState::kLost;
  const auto updated = api().Update(
      Kind::kShardMap, *EncodeShardMap(pool->meta, map, (*made)->meta.resource_version));
  ASSERT_TRUE(updated.ok()) << updated.status().ToString();
  PollEvents(watching, 2);
  ASSERT_EQ(Story(watching.events), "ADDED big, MODIFIED big");
  const auto seen = DecodeShardMap(*watching.events[1].object);
  ASSERT_TRUE(seen.ok()) << seen.status().ToString();
  EXPECT_TRUE(seen->map == map);
  EXPECT_TRUE(DecodeShardMap(**api().Get(Kind::kShardMap, Name("big")))->map == map);
}

TEST_P(KubeConformance, MergePatchChangesWhatItNames) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", R"({"x":"1","y":"2"})")).ok());
  const auto patched = api().Patch(Kind::kConfigMap, Name("a"), PatchType::kMerge,
                                   R"({"data":{"x":null,"z":"3"}})", false);
  ASSERT_TRUE(patched.ok()) << patched.status().ToString();
  EXPECT_EQ(Root(*patched)["data"], Json({{"y", "2"}, {"z", "3"}}));
  const ObjectPtr pool = *api().Create(Kind::kPool, Pool("p"));
  const auto paused = api().Patch(Kind::kPool, Name("p"), PatchType::kMerge,
                                  R"({"spec":{"paused":true},"status":{"epoch":5}})", false);
  ASSERT_TRUE(paused.ok()) << paused.status().ToString();
  EXPECT_EQ((*paused)->meta.generation, 2);
  EXPECT_FALSE(Root(*paused).contains("status"));
  const auto status = api().Patch(Kind::kPool, Name("p"), PatchType::kMerge,
                                  R"({"spec":{"paused":false},"status":{"epoch":5}})", true);
  ASSERT_TRUE(status.ok()) << status.status().ToString();
  EXPECT_EQ(Root(*status)["status"]["epoch"], 5);
  EXPECT_EQ(Root(*status)["spec"]["paused"], true);
  EXPECT_TRUE(IsInvalid(api()
                            .Patch(Kind::kPool, Name("p"), PatchType::kMerge,
                                   R"({"spec":{"sharding":{"replicas":9}}})", false)
                            .status()))
      << "what comes out is checked as any write";
  EXPECT_TRUE(
      IsNotFound(api().Patch(Kind::kPool, Name("none"), PatchType::kMerge, "{}", false).status()));
}

TEST_P(KubeConformance, PatchIsGuardedByWhatItNames) {
  const ObjectPtr other = *api().Create(Kind::kConfigMap, ConfigMap("other", "{}"));
  const ObjectPtr made = *api().Create(Kind::kConfigMap, ConfigMap("a", "{}"));
  const auto patch = [&](const std::string& metadata) {
    return api()
        .Patch(Kind::kConfigMap, Name("a"), PatchType::kMerge,
               R"({"metadata":{)" + metadata + R"(},"data":{"k":"1"}})", false)
        .status();
  };
  EXPECT_TRUE(IsConflict(
      patch(R"("resourceVersion":")" + std::to_string(other->meta.resource_version) + R"(")")));
  const Status renamed = patch(R"("uid":"another")");
  EXPECT_TRUE(IsConflict(renamed) || IsInvalid(renamed)) << renamed.ToString();
  EXPECT_TRUE(patch(R"("resourceVersion":")" + std::to_string(made->meta.resource_version) +
                    R"(","uid":")" + made->meta.uid + R"(")")
                  .ok());
}

TEST_P(KubeConformance, JsonPatchTestsBeforeItChanges) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", R"({"x":"1"})")).ok());
  const auto patch = [&](const std::string& text) {
    return api().Patch(Kind::kConfigMap, Name("a"), PatchType::kJson, text, false);
  };
  const auto done = patch(
      R"([{"op":"test","path":"/data/x","value":"1"},{"op":"add","path":"/data/y","value":"2"},)"
      R"({"op":"remove","path":"/data/x"}])");
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_EQ(Root(*done)["data"], Json({{"y", "2"}}));
  const auto refused = patch(R"([{"op":"replace","path":"/data/y","value":"3"},)"
                             R"({"op":"test","path":"/data/y","value":"2"}])");
  EXPECT_TRUE(IsInvalid(refused.status())) << refused.status().ToString();
  EXPECT_EQ(Root(*api().Get(Kind::kConfigMap, Name("a")))["data"]["y"], "2");
  EXPECT_TRUE(IsInvalid(patch(R"([{"op":"remove","path":"/data/none"}])").status()));
}

}  // namespace kvfabric::kube
