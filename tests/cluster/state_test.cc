// What an agent keeps on disk: identity, boot epoch, pools and maps; and the fences.

#include <gtest/gtest.h>

#include <fstream>

#include "agent/cluster/agent_state.h"
#include "agent/cluster/map_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

TEST(AgentState, KeepsItsUidAndRaisesItsBootEpochEvenIfTheClockWentBack) {
  TempDir dir;
  FakeClock clock;
  std::string uid;
  std::uint64_t boot = 0;
  {
    const auto state = AgentState::Open(dir.path() / "a", clock).value();
    uid = state->agent_uid();
    boot = state->boot_epoch();
    EXPECT_EQ(uid.size(), 36U);
    EXPECT_EQ(boot, static_cast<std::uint64_t>(clock.UnixMicros()));
  }
  clock.JumpUnix(-std::chrono::hours(24));
  {
    const auto state = AgentState::Open(dir.path() / "a", clock).value();
    EXPECT_EQ(state->agent_uid(), uid);
    EXPECT_EQ(state->boot_epoch(), boot + 1);
  }
  clock.JumpUnix(std::chrono::hours(48));
  const auto state = AgentState::Open(dir.path() / "a", clock).value();
  EXPECT_EQ(state->boot_epoch(), static_cast<std::uint64_t>(clock.UnixMicros()));
  EXPECT_NE(AgentState::Open(dir.path() / "b", clock).value()->agent_uid(), uid);
}

TEST(AgentState, RefusesASecondAgentOnTheSameDirectory) {
  TempDir dir;
  FakeClock clock;
  const auto first = AgentState::Open(dir.path(), clock).value();
  const auto second = AgentState::Open(dir.path(), clock);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
}

TEST(AgentState, SaysSoWhenItsFileIsDamaged) {
  TempDir dir;
  FakeClock clock;
  AgentState::Open(dir.path(), clock).value().reset();
  std::ofstream(dir.path() / "agent") << "nonsense";
  EXPECT_EQ(AgentState::Open(dir.path(), clock).status().code(), StatusCode::kDataLoss);
}

PoolSpecForAgent MakeSpec(const std::string& uid) {
  PoolSpecForAgent spec;
  spec.uid = uid;
  spec.name = "ns/" + uid;
  spec.generation = 7;
  spec.dram_capacity_bytes = 123'456'789'012;
  spec.replicas = 3;
  spec.acks_replicated = true;
  spec.tenants = {{"team one", 5}, {"b", 0}};
  spec.bandwidth_limit_bytes_per_s = 99;
  spec.drain_timeout = std::chrono::seconds(17);
  spec.lookup_deadline = std::chrono::milliseconds(23);
  spec.paused = true;
  return spec;
}

ShardMap MakeMap(std::uint64_t term, std::uint64_t epoch) {
  ShardMap map;
  map.pool_uid = "u1";
  map.term = term;
  map.epoch = epoch;
  Member member;
  member.node_name = "n";
  member.agent_uid = "uid";
  member.address = "127.0.0.1";
  map.members = {member};
  map.table.assign(std::size_t{map.slot_count} * 2, kNoOwner);
  for (std::size_t at = 0; at < map.table.size(); at += 2) map.table[at] = 0;
  return map;
}

TEST(MapStore, GivesBackWhatWasSaved) {
  TempDir dir;
  MapStore store(dir.path());
  EXPECT_TRUE(store.LoadPools()->pools.empty());
  EXPECT_FALSE(store.LoadMap("u1")->has_value());
  ASSERT_TRUE(store.SavePools({4, {MakeSpec("u1"), MakeSpec("u2")}}).ok());
  ASSERT_TRUE(store.SaveMap(MakeMap(4, 9)).ok());
  const StoredPools pools = MapStore(dir.path()).LoadPools().value();
  EXPECT_EQ(pools.term, 4U);
  ASSERT_EQ(pools.pools.size(), 2U);
  const PoolSpecForAgent& spec = pools.pools[1];
  EXPECT_EQ(spec.name, "ns/u2");
  EXPECT_EQ(spec.generation, 7);
  EXPECT_EQ(spec.dram_capacity_bytes, 123'456'789'012U);
  EXPECT_EQ(spec.replicas, 3U);
  EXPECT_TRUE(spec.acks_replicated);
  EXPECT_FALSE(spec.locality_spread);
  ASSERT_EQ(spec.tenants.size(), 2U);
  EXPECT_EQ(spec.tenants[0].tenant, "team one");
  EXPECT_EQ(spec.tenants[0].dram_bytes, 5U);
  EXPECT_EQ(spec.bandwidth_limit_bytes_per_s, 99U);
  EXPECT_EQ(spec.drain_timeout, std::chrono::seconds(17));
  EXPECT_EQ(spec.lookup_deadline, std::chrono::milliseconds(23));
  EXPECT_TRUE(spec.paused);
  EXPECT_EQ(**MapStore(dir.path()).LoadMap("u1"), MakeMap(4, 9));
  ASSERT_TRUE(store.RemoveMap("u1").ok());
  EXPECT_FALSE(store.LoadMap("u1")->has_value());
}

TEST(MapStore, ReportsDamageAndUsesNothingOfIt) {
  TempDir dir;
  MapStore store(dir.path());
  ASSERT_TRUE(store.SavePools({4, {MakeSpec("u1")}}).ok());
  ASSERT_TRUE(store.SaveMap(MakeMap(4, 9)).ok());
  for (const char* name : {"pools", "map.u1"}) {
    std::fstream file(dir.path() / name, std::ios::in | std::ios::out);
    file.seekp(30);
    file << "\x01";
  }
  EXPECT_EQ(store.LoadPools().status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(store.LoadMap("u1").ok());
}

TEST(MapStore, RefusesPoolUidsThatAreNoFileNames) {
  for (const char* uid : {"", "..", "a/b", ".hidden", "a\nb"}) {
    EXPECT_FALSE(ValidatePoolUid(uid).ok()) << uid;
  }
  EXPECT_TRUE(ValidatePoolUid("3e2c1d5a-0f6b-4a55-9d0e-b7c6f0a1c2d3").ok());
}

TEST(MapFence, RefusesWhatIsOlderAndAnotherMapOfTheSameEpoch) {
  const ShardMap current = MakeMap(3, 10);
  EXPECT_TRUE(CheckMapFence(nullptr, MakeMap(0, 1)).ok());
  EXPECT_TRUE(CheckMapFence(&current, MakeMap(3, 10)).ok());
  EXPECT_TRUE(CheckMapFence(&current, MakeMap(3, 11)).ok());
  EXPECT_TRUE(CheckMapFence(&current, MakeMap(4, 10)).ok());  // the stored map under a new leader
  EXPECT_EQ(CheckMapFence(&current, MakeMap(2, 11)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckMapFence(&current, MakeMap(4, 9)).code(), StatusCode::kFailedPrecondition);
  ShardMap other = MakeMap(3, 10);
  other.members[0].zone = "z";
  EXPECT_EQ(CheckMapFence(&current, other).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvfabric
