// The life of a pool under scripted faults: whatever the operator sees and whenever it dies, in the
// end there is the one right state.

#include "tests/operator/fault_script.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>

#include "operator/kube/api_error.h"
#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using kube::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

const char* const kDrain = R"(,"annotations":{"kvfabric.io/drain":"true"})";

// Every member serves its share, the agents have this map and no other pool, status says so.
void ExpectRightState(OperatorCluster& cluster, const std::set<std::string>& nodes) {
  const auto map = cluster.map();
  ASSERT_TRUE(map.has_value());
  std::set<std::string> members;
  for (const Member& member : map->members) {
    members.insert(member.node_name);
    EXPECT_EQ(member.state, MemberState::kActive) << member.node_name;
    EXPECT_NEAR(static_cast<double>(SlotsOf(*map, member.node_name)),
                16384.0 / static_cast<double>(nodes.size()), 2)
        << member.node_name;
    const FakeAgent& agent = cluster.agent(member.node_name);
    ASSERT_EQ(agent.pools.size(), 1U) << member.node_name;
    ASSERT_EQ(agent.maps.count(map->pool_uid), 1U) << member.node_name;
    EXPECT_EQ(agent.maps.at(map->pool_uid).epoch, map->epoch) << member.node_name;
    EXPECT_FALSE(agent.draining) << member.node_name;
  }
  EXPECT_EQ(members, nodes);
  EXPECT_EQ(map->pool_uid, cluster.pool().meta.uid);
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
  EXPECT_EQ(cluster.condition("ShardMapConverged"), "True Applied");
  EXPECT_EQ(cluster.condition("Degraded"), "False AllWell");
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
  EXPECT_EQ(cluster.api().List(Kind::kShardMap, "")->items.size(), 1U);
}

// Lets time pass; an operator that died comes back two seconds later.
void Live(OperatorCluster& cluster, seconds span, const std::function<void()>& each_second = {}) {
  for (seconds done{0}; done < span; done += seconds(1)) {
    if (each_second) each_second();
    cluster.Run(seconds(1));
    if (!cluster.faults.dead) continue;
    cluster.KillOperator();
    cluster.faults.die_in_write.reset();
    cluster.Run(seconds(2));
    cluster.StartOperator();
  }
}

// A pool begins, a node joins, one is drained and one dies; both come back.
void LiveThroughAll(OperatorCluster& cluster, const std::function<void()>& each_second = {}) {
  for (const char* node : {"n0", "n1", "n2"}) cluster.AddAgent(node);
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  Live(cluster, seconds(8), each_second);
  cluster.AddAgent("n3");
  Live(cluster, seconds(14), each_second);
  cluster.EditNode("n0", kDrain, "{}");
  cluster.agent("n0").drain_done = true;
  Live(cluster, seconds(6), each_second);
  cluster.agent("n1").up = false;
  Live(cluster, seconds(26), each_second);
  cluster.EditNode("n0", "", "{}");
  cluster.agent("n0").drain_done = false;
  cluster.agent("n1").up = true;
  Live(cluster, seconds(30), each_second);
}

const std::set<std::string> kAllNodes{"n0", "n1", "n2", "n3"};

// All writes, in shards that run side by side.
class CrashInEachWrite : public ::testing::TestWithParam<std::uint64_t> {
 public:
  static constexpr std::uint64_t kShards = 4;
};

TEST_P(CrashInEachWrite, EndsInTheRightState) {
  std::uint64_t writes = 0;
  {
    OperatorCluster undisturbed;
    LiveThroughAll(undisturbed);
    ExpectRightState(undisturbed, kAllNodes);
    writes = undisturbed.faults.writes;
  }
  ASSERT_GT(writes, 10U);
  // A sanitizer takes a sample, another one each time.
  const std::uint64_t stride = kShards * (TimeScale() > 1 ? 8 : 1);
  const std::uint64_t first = 1 + GetParam() + kShards * (TestSeed() % (stride / kShards));
  for (std::uint64_t die_in = first; die_in <= writes; die_in += stride) {
    OperatorCluster cluster;
    cluster.faults.die_in_write = die_in;
    LiveThroughAll(cluster);
    Live(cluster, seconds(30));
    SCOPED_TRACE("died in write " + std::to_string(die_in));
    ExpectRightState(cluster, kAllNodes);
    if (testing::Test::HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(FaultScript, CrashInEachWrite,
                         ::testing::Range(std::uint64_t{0}, CrashInEachWrite::kShards));

TEST(FaultScript, LostAnswersOfWritesEndInTheRightState) {
  OperatorCluster cluster;
  cluster.faults.lost_answers = 0.5;
  LiveThroughAll(cluster);
  cluster.faults.lost_answers = 0;
  Live(cluster, seconds(60));
  ExpectRightState(cluster, kAllNodes);
}

TEST(FaultScript, StormOfRefusalsEndsInTheRightState) {
  OperatorCluster cluster;
  cluster.faults.storm = 0.6;
  LiveThroughAll(cluster);
  cluster.faults.storm = 0;
  Live(cluster, seconds(90));
  ExpectRightState(cluster, kAllNodes);
}

TEST(FaultScript, WatchesThatExpireAndBreakEndInTheRightState) {
  OperatorCluster cluster;
  std::mt19937_64 random(TestSeed());
  LiveThroughAll(cluster, [&] {
    cluster.faults.expire_watches = random() % 4 == 0;
    cluster.faults.break_watches = random() % 3 == 0;
    cluster.faults.unreachable = random() % 6 == 0;
  });
  cluster.faults.expire_watches = cluster.faults.break_watches = cluster.faults.unreachable = false;
  Live(cluster, seconds(120));
  ExpectRightState(cluster, kAllNodes);
}

// Kinds are seen at different times: the map before its pool, the pod before its node.
TEST(FaultScript, KindsSeenInAnyOrderEndInTheRightState) {
  OperatorCluster cluster;
  std::mt19937_64 random(TestSeed());
  LiveThroughAll(cluster, [&] {
    cluster.faults.frozen.clear();
    for (const Kind kind : {Kind::kPool, Kind::kShardMap, Kind::kNode, Kind::kPod}) {
      if (random() % 2 == 0) cluster.faults.frozen.insert(kind);
    }
  });
  cluster.faults.frozen.clear();
  Live(cluster, seconds(60));
  ExpectRightState(cluster, kAllNodes);
}

// field-bugs, Operators 7 and 8: what it does not see of its own writes it does not do again.
TEST(FaultScript, FrozenInformersMakeNothingTwice) {
  OperatorCluster cluster;
  for (const char* node : {"n0", "n1", "n2"}) cluster.AddAgent(node);
  cluster.Run(seconds(5));
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(milliseconds(200));  // the pool is seen, its map is yet to be written
  ASSERT_FALSE(cluster.map().has_value());
  cluster.faults.frozen = {Kind::kShardMap};
  cluster.Run(seconds(60));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_EQ(cluster.api().writes(Kind::kShardMap), 1U);
  // Nor does it write a status over one that it has not seen come round.
  cluster.faults.frozen = {Kind::kPool, Kind::kShardMap};
  cluster.agent("n0").ready = false;
  const std::uint64_t before = cluster.api().writes(Kind::kPool);
  cluster.Run(seconds(60));
  EXPECT_LE(cluster.api().writes(Kind::kPool), before + 1);
  cluster.agent("n0").ready = true;
  // A new leader that sees nothing does nothing.
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(60));
  EXPECT_EQ(cluster.writes(), 0U);
  cluster.faults.frozen.clear();
  cluster.Run(seconds(20));
  EXPECT_EQ(cluster.map()->epoch, 1U);
  ExpectRightState(cluster, {"n0", "n1", "n2"});
}

TEST(FaultScript, PoolMadeAgainUnseenIsAnother) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  const std::string old_uid = cluster.pool().meta.uid;
  cluster.faults.frozen = {Kind::kPool, Kind::kShardMap};
  ASSERT_TRUE(cluster.api().Delete(Kind::kPool, {"default", "main"}, {}).ok());
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(20));
  cluster.faults.frozen.clear();
  cluster.Run(seconds(30));
  EXPECT_NE(cluster.pool().meta.uid, old_uid);
  ExpectRightState(cluster, {"n0", "n1", "n2"});
  EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{old_uid});
}

TEST(FaultScript, DeletedShardMapIsMadeAgainAboveWhatAgentsKnow) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.AddAgent("n3");
  cluster.Run(seconds(30));
  const ShardMap before = *cluster.map();
  ASSERT_TRUE(cluster.api().Delete(Kind::kShardMap, {"default", "main"}, {}).ok());
  cluster.Run(seconds(20));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_GT(cluster.map()->epoch, before.epoch);
  ExpectRightState(cluster, kAllNodes);
}

// field-bugs, Operators 14: all objects of the namespace go, in the order the API likes.
TEST(FaultScript, DeletedNamespaceLeavesNothing) {
  for (const bool running : {true, false}) {
    OperatorCluster cluster;
    cluster.Form(3, OperatorCluster::QuickSpec());
    const std::string uid = cluster.pool().meta.uid;
    // With the operator off: it sees nothing of it, and another one comes later.
    if (!running) cluster.faults.unreachable = true;
    ASSERT_TRUE(cluster.api().Delete(Kind::kPool, {"default", "main"}, {}).ok());
    const Status map = cluster.api().Delete(Kind::kShardMap, {"default", "main"}, {});
    EXPECT_TRUE(map.ok() || kube::IsNotFound(map));
    if (!running) {
      cluster.KillOperator();
      cluster.Run(seconds(30));
      cluster.faults.unreachable = false;
      cluster.StartOperator();
    }
    cluster.Run(seconds(20));
    EXPECT_TRUE(cluster.api().List(Kind::kPool, "")->items.empty());
    EXPECT_TRUE(cluster.api().List(Kind::kShardMap, "")->items.empty());
    EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{uid}) << running;
    EXPECT_TRUE(cluster.agent("n0").pools.empty());
  }
}

// field-bugs, Operators 22: agents that cannot be reached are not gone.
TEST(FaultScript, OperatorCutOffFromAllAgentsMovesNothingBeforeTheGrace) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  const ShardMap before = *cluster.map();
  for (const char* node : {"n0", "n1", "n2"}) cluster.agent(node).silent = true;
  cluster.Run(seconds(15));
  EXPECT_EQ(Moved(before, *cluster.map()), 0U);
  for (const char* node : {"n0", "n1", "n2"}) cluster.agent(node).silent = false;
  cluster.Run(seconds(20));
  EXPECT_EQ(Moved(before, *cluster.map()), 0U);
  ExpectRightState(cluster, {"n0", "n1", "n2"});
}

}  // namespace
}  // namespace kvfabric
