#include <gtest/gtest.h>

#include <random>

#include "operator/kube/api_error.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Controllers, FormsAPoolOnTheAgentsThereAre) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  const auto map = cluster.map();
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->epoch, 1U);
  EXPECT_EQ(map->term, 1U);
  ASSERT_EQ(map->members.size(), 3U);
  for (const Member& member : map->members) {
    EXPECT_EQ(member.state, MemberState::kActive) << "nobody ramps into an empty pool";
    EXPECT_EQ(member.bulk_port, member.grpc_port + 10000);
    EXPECT_NEAR(static_cast<double>(SlotsOf(*map, member.node_name)), 16384.0 / 3, 2);
    EXPECT_EQ(cluster.agent(member.node_name).maps.begin()->second, *map);
  }
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
  EXPECT_EQ(cluster.condition("ShardMapConverged"), "True Applied");
  EXPECT_EQ(cluster.condition("Degraded"), "False AllWell");
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
  EXPECT_EQ(cluster.condition("ConfigValid"), "True ValidButSimpler");
  EXPECT_EQ(cluster.condition("CapacityOK"), "True Enough");
  EXPECT_EQ(cluster.condition("TLSReady"), "False AgentsInClear");
  const PoolStatus status = cluster.pool().status;
  EXPECT_EQ(status.members, (MemberCounts{3, 3, 0, 0, 0}));
  EXPECT_EQ(status.slots, (SlotCounts{16384, 16384, 0, 0}));
  EXPECT_EQ(status.epoch, 1U);
  EXPECT_EQ(status.observed_generation, 1);
  EXPECT_EQ(status.tiers.at(0).total_bytes, 3ULL << 30U);
}

TEST(Controllers, TellsAgentsWhatThePoolSays) {
  OperatorCluster cluster;
  cluster.Form(
      1, OperatorCluster::Spec(R"("sharding":{"replicas":2,"acks":"Replicated"},)"
                               R"("tenancy":{"tenants":[{"name":"a","quota":{"dram":"8Mi"}}]},)"
                               R"("access":{"lookupDeadline":"20ms"})"));
  const AgentPoolConfig& config = cluster.agent("n0").pools.begin()->second;
  EXPECT_EQ(config.uid, cluster.pool().meta.uid);
  EXPECT_EQ(config.name, "default/main");
  EXPECT_EQ(config.dram_capacity_bytes, 1ULL << 30U);
  EXPECT_TRUE(config.acks_replicated);
  EXPECT_EQ(config.tenants, (std::vector<AgentTenantConfig>{{"a", 8ULL << 20U}}));
  EXPECT_EQ(config.lookup_deadline, milliseconds(20));
  EXPECT_EQ(cluster.condition("Degraded"), "True TooFewReplicas") << "one node, two copies";
}

TEST(Controllers, IdleWritesNothingButTheLease) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(15));
  const std::uint64_t before = cluster.writes();
  const std::uint64_t lease = cluster.api().writes(kube::Kind::kLease);
  const std::size_t messages = cluster.agent("n0").map_messages + cluster.agent("n0").pool_messages;
  cluster.Run(seconds(600));
  EXPECT_EQ(cluster.writes(), before);
  EXPECT_GT(cluster.api().writes(kube::Kind::kLease), lease + 500);
  EXPECT_EQ(cluster.agent("n0").map_messages + cluster.agent("n0").pool_messages, messages);
}

TEST(Controllers, BadConfigIsSaidOnceAndStartsNothing) {
  OperatorCluster cluster;
  cluster.AddAgent("n0");
  cluster.ApplyPool(R"({"codec":"Lossless","tiers":[)"
                    R"({"name":"d","type":"DRAM","capacityPerNode":"1Gi"},)"
                    R"({"name":"f","type":"NVMe","capacityPerNode":"1Ti"}]})");
  cluster.Run(seconds(30));
  EXPECT_EQ(cluster.condition("ConfigValid"), "False NotBuilt");
  EXPECT_NE(cluster.message("ConfigValid").find("spec.tiers[1].type: \"NVMe\": not built yet"),
            std::string::npos);
  EXPECT_NE(cluster.message("ConfigValid").find("spec.codec"), std::string::npos);
  EXPECT_EQ(cluster.condition("Ready"), "False ConfigNotValid");
  EXPECT_FALSE(cluster.map().has_value());
  EXPECT_TRUE(cluster.agent("n0").pools.empty());
  const std::uint64_t writes = cluster.api().writes(kube::Kind::kPool);
  EXPECT_LE(writes, 3U);
  cluster.Run(seconds(120));
  EXPECT_EQ(cluster.api().writes(kube::Kind::kPool), writes);
  cluster.ApplyPool(R"({"codec":"Lossless","paused":true,"tiers":[)"
                    R"({"name":"d","type":"DRAM","capacityPerNode":"1Gi"},)"
                    R"({"name":"f","type":"NVMe","capacityPerNode":"1Ti"}]})");
  cluster.Run(seconds(5));
  EXPECT_EQ(cluster.pool().status.observed_generation, 2);
}

TEST(Controllers, NewerPoolThatAsksTooMuchIsRefused) {
  OperatorCluster cluster;
  cluster.AddAgent("n0");
  cluster.ApplyPool(OperatorCluster::Spec("", "6Gi"), "old");
  cluster.Run(seconds(5));
  cluster.ApplyPool(OperatorCluster::Spec("", "4Gi"), "new");
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.condition("ConfigValid", "old"), "True ValidButSimpler");
  EXPECT_EQ(cluster.condition("ConfigValid", "new"), "False Oversubscribed");
  EXPECT_EQ(cluster.agent("n0").pools.size(), 1U);
}

TEST(Controllers, RestartedOperatorGoesOnAndMovesNothing) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  const ShardMap before = *cluster.map();
  const PoolStatus status = cluster.pool().status;
  std::uint64_t writes = 0;
  for (int i = 0; i < 50; ++i) {
    cluster.KillOperator();
    cluster.Run(seconds(1));
    cluster.StartOperator();
    cluster.Run(seconds(7));
    writes += cluster.writes();
  }
  EXPECT_EQ(*cluster.map(), before) << "epoch and table as they were";
  EXPECT_EQ(writes, 0U);
  EXPECT_EQ(cluster.pool().status, status) << "no condition left its state";
  EXPECT_EQ(cluster.elector().term(), 51U);
  EXPECT_EQ(cluster.agent("n0").highest_term, 51U);
  EXPECT_EQ(cluster.agent("n0").maps.begin()->second.term, 51U) << "sent again under each term";
  EXPECT_TRUE(cluster.agent("n0").dropped_pools.empty());
}

TEST(Controllers, HigherEpochOfAnAgentIsOutdone) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  // Another operator's work that this one's store has lost.
  ShardMap ahead = *cluster.map();
  ahead.epoch = 40;
  cluster.agent("n1").maps[ahead.pool_uid] = ahead;
  cluster.Run(seconds(3));
  EXPECT_EQ(cluster.map()->epoch, 41U);
  EXPECT_EQ(cluster.map()->table, ahead.table) << "nothing moves for it";
  for (const char* node : {"n0", "n1", "n2"}) {
    EXPECT_EQ(cluster.agent(node).maps.begin()->second.epoch, 41U) << node;
  }
  EXPECT_EQ(cluster.condition("ShardMapConverged"), "True Applied");
}

TEST(Controllers, LostStoreOfTheMapGoesOnAboveWhatAgentsKnow) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kShardMap, {"default", "main"}, {}).ok());
  cluster.Run(seconds(5));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_EQ(cluster.map()->epoch, 2U);
  EXPECT_EQ(cluster.agent("n2").maps.begin()->second.epoch, 2U);
}

TEST(Controllers, VanishedPoolIsDroppedAndItsMapGoes) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.ApplyPool(OperatorCluster::Spec("", "2Gi"), "other");
  cluster.Run(seconds(10));
  const std::string uid = cluster.pool("other").meta.uid;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPool, {"default", "other"}, {}).ok());
  cluster.Run(seconds(3));
  EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{uid});
  EXPECT_FALSE(cluster.map("other").has_value());
  EXPECT_EQ(cluster.agent("n0").pools.size(), 1U);
}

TEST(Controllers, PoolMadeAgainUnderItsNameIsAnother) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  const std::string old_uid = cluster.pool().meta.uid;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPool, {"default", "main"}, {}).ok());
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(10));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_NE(cluster.map()->pool_uid, old_uid);
  EXPECT_EQ(cluster.map()->epoch, 1U) << "another UID starts a new sequence";
  EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{old_uid});
}

TEST(Controllers, FailingWritesFollowTheBackoff) {
  OperatorCluster cluster;
  cluster.AddAgent("n0");
  int attempts = 0;
  bool full = true;
  cluster.fault = [&](const char* step) {
    if (!full || std::string(step) != "write") return Status::Ok();
    ++attempts;
    return ResourceExhausted("no space left");
  };
  cluster.elector().Step();
  full = false;
  cluster.elector().Step();
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(1));
  // From here on only the lease and status writes are tried.
  full = true;
  attempts = 0;
  const std::uint64_t before = cluster.api().writes(kube::Kind::kPool);
  cluster.Run(seconds(4));
  EXPECT_GT(attempts, 3);
  EXPECT_LT(attempts, 40) << "5 ms doubling, not every tick";
  EXPECT_EQ(cluster.api().writes(kube::Kind::kPool), before);
  full = false;
  cluster.Run(seconds(45));
  EXPECT_TRUE(cluster.map().has_value());
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
}

TEST(Controllers, LeaderThatLostItsLeaseTellsNobodyAnything) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.fault = [](const char*) { return Unavailable("disk gone"); };
  cluster.Run(seconds(7));
  EXPECT_FALSE(cluster.elector().leading());
  EXPECT_EQ(cluster.dialer.open_links(), 0U);
  // Nor does it spin over what it may not do: pools are due, but not for it.
  EXPECT_GT(cluster.loop().NextDue(), cluster.clock.Now());
  cluster.fault = nullptr;
  cluster.Run(seconds(15));
  EXPECT_TRUE(cluster.elector().leading());
  EXPECT_EQ(cluster.elector().term(), 2U);
  EXPECT_EQ(cluster.agent("n0").highest_term, 2U);
  EXPECT_EQ(cluster.map()->epoch, 1U);
}

// Another process holds the Lease; this one has not noticed yet.
TEST(Controllers, OldLeaderIsRefusedByTheAgents) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  const kube::ObjectName lease{kAgentNamespace, "kvfabric-operator"};
  const auto held = cluster.api().Get(kube::Kind::kLease, lease);
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(cluster.api()
                  .Update(kube::Kind::kLease,
                          R"({"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":)"
                          R"({"namespace":"kvfabric-system","name":"kvfabric-operator",)"
                          R"("resourceVersion":")" +
                              std::to_string((*held)->meta.resource_version) +
                              R"("},"spec":{"holderIdentity":"other","leaseDurationSeconds":3600,)"
                              R"("leaseTransitions":9}})")
                  .ok());
  cluster.agent("n0").highest_term = 9;  // the new leader has been there
  ++cluster.agent("n0").boot_epoch;      // the stream is dialled again
  cluster.agent("n0").maps.clear();
  cluster.Run(seconds(20));
  EXPECT_TRUE(cluster.agent("n0").maps.empty());
  EXPECT_EQ(cluster.agent("n0").highest_term, 9U);
  EXPECT_FALSE(cluster.elector().leading());
  EXPECT_EQ(cluster.elector().term(), 1U) << "knowing of a higher term is no right to one";
}

// etcd went back to an older state: the Lease is the same one (its uid), its count is lower.
TEST(Controllers, RestoredLeaseGoesOnAboveTheTermThatAgentsKnow) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.KillOperator();
  cluster.SaveStore();
  for (int restart = 0; restart < 4; ++restart) {
    cluster.StartOperator();
    cluster.Run(seconds(10));
    cluster.KillOperator();
  }
  EXPECT_EQ(cluster.agent("n0").highest_term, 5U);
  cluster.RestoreStore();
  for (const char* node : {"n0", "n1"}) ++cluster.agent(node).boot_epoch;
  cluster.StartOperator();
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.elector().term(), 6U);
  for (const char* node : {"n0", "n1"}) {
    EXPECT_EQ(cluster.agent(node).highest_term, 6U);
    EXPECT_EQ(cluster.agent(node).maps.at(cluster.map()->pool_uid).term, 6U);
  }
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
}

TEST(Controllers, OperatorWithAFreshStoreBeginsASequenceOfItsOwn) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.agent("n0").highest_term, 2U);
  const std::string lease = cluster.agent("n0").lease_uid;
  EXPECT_FALSE(lease.empty());

  cluster.LoseStore();
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.elector().term(), 1U);
  EXPECT_EQ(cluster.agent("n0").highest_term, 1U);
  EXPECT_NE(cluster.agent("n0").lease_uid, lease);
  EXPECT_EQ(cluster.agent("n0").maps.at(cluster.map()->pool_uid).term, 1U);
}

// kubectl delete lease with the operator down: the pools, and so their fences, are the old ones.
TEST(Controllers, TermsCatchUpWithTheAgentsWhenTheLeaseWasLost) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  for (int restart = 0; restart < 2; ++restart) {
    cluster.KillOperator();
    cluster.StartOperator();
    cluster.Run(seconds(10));
  }
  EXPECT_EQ(cluster.agent("n0").highest_term, 3U);
  ASSERT_TRUE(
      cluster.api().Delete(kube::Kind::kLease, {kAgentNamespace, "kvfabric-operator"}, {}).ok());
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.elector().term(), 4U);
  EXPECT_EQ(cluster.agent("n0").maps.at(cluster.map()->pool_uid).term, 4U);
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
}

TEST(Controllers, AgentThatObeysAnotherOperatorIsToldToPeople) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.agent("n0").refuses_operators = "operator x of another Lease is connected";
  cluster.agent("n0").boot_epoch = 2;  // dialled again
  cluster.Run(seconds(15));            // status is written every 10 s
  EXPECT_NE(cluster.message("Degraded").find("operator x of another Lease is connected"),
            std::string::npos)
      << cluster.message("Degraded");
  cluster.agent("n0").refuses_operators.clear();
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.message("Degraded").find("another Lease"), std::string::npos);
}

TEST(Controllers, PausedPoolIsLeftAsItIs) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  std::string spec = OperatorCluster::QuickSpec();
  spec.pop_back();
  cluster.ApplyPool(spec + R"(,"paused":true})");
  cluster.AddAgent("n3");
  cluster.agent("n1").up = false;
  cluster.Run(seconds(40));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.pool().status.rebalance.state, "Paused");
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(40));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  EXPECT_GT(SlotsOf(*cluster.map(), "n3"), 0U);
}

TEST(Controllers, StatusIsWrittenAtMostEveryTenSeconds) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.Run(seconds(15));
  const std::uint64_t before = cluster.api().writes(kube::Kind::kPool);
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 100; ++i) {
    cluster.agent("n0").under_replicated = 1 + random() % 1000;  // numbers that change
    cluster.agent("n1").arena_bytes += 1;
    cluster.Run(seconds(1));
  }
  EXPECT_LE(cluster.api().writes(kube::Kind::kPool) - before, 12U);
}

// Crash after any write of the store, start again: the end is the same as without a crash.
TEST(Controllers, CrashAfterAnyWriteEndsWell) {
  for (int die_at = 1; die_at <= 12; ++die_at) {
    OperatorCluster cluster;
    int renames = 0;
    bool dead = false;
    cluster.fault = [&](const char* step) {
      if (dead) return Unavailable("dead");
      if (std::string(step) == "sync_directory" && ++renames == die_at) dead = true;
      return Status::Ok();
    };
    cluster.AddAgentTolerant("n0");
    cluster.AddAgentTolerant("n1");
    cluster.ApplyPoolTolerant(OperatorCluster::QuickSpec());
    cluster.Run(seconds(8));
    cluster.KillOperator();
    cluster.fault = nullptr;
    cluster.StartOperator();
    cluster.AddAgentTolerant("n0");
    cluster.AddAgentTolerant("n1");
    cluster.ApplyPoolTolerant(OperatorCluster::QuickSpec());
    cluster.Run(seconds(60));
    ASSERT_TRUE(cluster.map().has_value()) << die_at;
    EXPECT_EQ(cluster.map()->members.size(), 2U) << die_at;
    EXPECT_EQ(cluster.condition("Ready"), "True Serving") << die_at;
    EXPECT_EQ(cluster.condition("ShardMapConverged"), "True Applied") << die_at;
    for (const char* node : {"n0", "n1"}) {
      ASSERT_EQ(cluster.agent(node).maps.size(), 1U) << die_at;
      EXPECT_EQ(cluster.agent(node).maps.begin()->second.epoch, cluster.map()->epoch) << die_at;
    }
  }
}

}  // namespace
}  // namespace kvfabric
