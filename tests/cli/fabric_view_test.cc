#include "cli/fabric_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "operator/specs/shard_map_object.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

ShardMap TwoNodes() {
  ShardMap map;
  map.pool_uid = "uid-1";
  map.term = 2;
  map.epoch = 7;
  for (const char* node : {"node-0", "node-1"}) {
    Member member;
    member.node_name = node;
    member.agent_uid = std::string("agent-") + node;
    member.address = "127.0.0.1";
    map.members.push_back(member);
  }
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    map.table.push_back(slot < 100 ? 0 : 1);
    map.table.push_back(slot < 100 ? 1 : 0);
  }
  return map;
}

std::string MapObject(const ShardMap& map) {
  kube::ObjectMeta pool;
  pool.name = {.ns = "default", .name = "main"};
  pool.uid = map.pool_uid;
  return EncodeShardMap(pool, map, 0).value();
}

std::string PoolObject() {
  return Json{
      {"apiVersion", "kvfabric.io/v1alpha1"},
      {"kind", "KVCachePool"},
      {"metadata",
       {{"name", "main"}, {"namespace", "default"}, {"uid", "uid-1"}, {"generation", 3}}},
      {"spec", {{"tiers", {{{"name", "dram"}, {"type", "DRAM"}, {"capacityPerNode", "64Mi"}}}}}},
      {"status",
       {{"observedGeneration", 3},
        {"members", {{"desired", 2}, {"ready", 1}}},
        {"hitRatio", "12.5%"},
        {"conditions",
         {{{"type", "Ready"}, {"status", "True"}},
          {{"type", "ConfigValid"}, {"status", "False"}}}}}}}
      .dump();
}

TEST(FabricView, CountsWhatEachNodeOwns) {
  const ShardMap map = TwoNodes();
  const auto member = MembershipOf(map, "node-0");
  ASSERT_TRUE(member.has_value());
  EXPECT_EQ(member->first_owner_slots, 100U);
  EXPECT_EQ(member->owner_slots, kRedisSlots);
  EXPECT_FALSE(MembershipOf(map, "node-9").has_value());
}

TEST(FabricView, ConditionsOfAnEarlierGenerationAreUnknown) {
  Result<kube::Object> object = kube::ParseObject(kube::Kind::kPool, PoolObject());
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  Result<PoolView> pool = DecodePoolView(*object);
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(pool->ready());
  EXPECT_EQ(pool->condition("ConfigValid"), kube::ConditionStatus::kFalse);
  EXPECT_EQ(pool->condition("Degraded"), kube::ConditionStatus::kUnknown);
  EXPECT_EQ(pool->status().members.ready, 1U);
  pool->pool.meta.generation = 4;
  EXPECT_FALSE(pool->ready());
}

TEST(FabricView, ShowsTheLastFilesWithoutAnOperator) {
  TempDir temp;
  const FabricDirectory fabric = *FabricDirectory::At(temp.path().string());
  ASSERT_TRUE(fabric.Make().ok());
  FabricSettings settings;
  settings.nodes = {{.name = "node-0", .zone = "", .ports = {}}};
  ASSERT_TRUE(fabric.SaveSettings(settings).ok());
  std::filesystem::create_directories(fabric.api() / "kvcachepools" / "default");
  std::filesystem::create_directories(fabric.api() / "kvcacheshardmaps" / "default");
  // JSON is YAML.
  ASSERT_TRUE(
      WriteFileAtomically(fabric.api() / "kvcachepools/default/main.yaml", PoolObject(), 0600)
          .ok());
  ASSERT_TRUE(WriteFileAtomically(fabric.api() / "kvcacheshardmaps/default/main.yaml",
                                  MapObject(TwoNodes()), 0600)
                  .ok());
  const Result<FabricView> view = LoadView(fabric);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_TRUE(view->from_files);
  EXPECT_NE(view->why_files.find("kvctl up"), std::string::npos) << view->why_files;
  ASSERT_EQ(view->pools.size(), 1U);
  EXPECT_EQ(view->pools[0].name, "default/main");
  ASSERT_TRUE(view->pools[0].map.has_value());
  EXPECT_EQ(view->pools[0].map->epoch, 7U);
  EXPECT_EQ(view->nodes[0].process, ProcessState::kNeverStarted);
}

}  // namespace
}  // namespace kvfabric::cli
