#include <gtest/gtest.h>

#include <random>

#include "operator/kube/api_error.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/fake_agents.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Short times, so that a test need not simulate minutes.
std::string QuickSpec(const std::string& replicas = "1", const std::string& more = "") {
  return Cluster::Spec(R"("sharding":{"replicas":)" + replicas +
                       R"(},"rebalance":{"nodeLossGracePeriod":"20s","joinWarmup":"10s",)"
                       R"("joinRampPercent":25)" +
                       more + "}");
}

TEST(Controllers, FormsAPoolOnTheAgentsThereAre) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
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
  EXPECT_EQ(cluster.condition("TLSReady"), "False NotBuilt");
  const PoolStatus status = cluster.pool().status;
  EXPECT_EQ(status.members, (MemberCounts{3, 3, 0, 0, 0}));
  EXPECT_EQ(status.slots, (SlotCounts{16384, 16384, 0, 0}));
  EXPECT_EQ(status.epoch, 1U);
  EXPECT_EQ(status.observed_generation, 1);
  EXPECT_EQ(status.tiers.at(0).total_bytes, 3ULL << 30U);
}

TEST(Controllers, TellsAgentsWhatThePoolSays) {
  Cluster cluster;
  cluster.Form(1, Cluster::Spec(R"("sharding":{"replicas":2,"acks":"Replicated"},)"
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
  Cluster cluster;
  cluster.Form(3, QuickSpec());
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
  Cluster cluster;
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
  Cluster cluster;
  cluster.AddAgent("n0");
  cluster.ApplyPool(Cluster::Spec("", "6Gi"), "old");
  cluster.Run(seconds(5));
  cluster.ApplyPool(Cluster::Spec("", "4Gi"), "new");
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.condition("ConfigValid", "old"), "True ValidButSimpler");
  EXPECT_EQ(cluster.condition("ConfigValid", "new"), "False Oversubscribed");
  EXPECT_EQ(cluster.agent("n0").pools.size(), 1U);
}

TEST(Controllers, SilenceWithinGraceMovesNothing) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));  // one full grace of leadership
  const ShardMap before = *cluster.map();
  cluster.agent("n1").silent = true;
  cluster.Run(seconds(10));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.condition("Degraded"), "True NodesMissing");
  EXPECT_NE(cluster.message("Degraded").find("n1"), std::string::npos);
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
  cluster.agent("n1").silent = false;
  cluster.Run(seconds(15));
  EXPECT_EQ(*cluster.map(), before) << "back within grace: not even an epoch";
  EXPECT_EQ(cluster.condition("Degraded"), "False AllWell");
}

TEST(Controllers, LossAfterGraceGivesTheSlotsAway) {
  Cluster cluster;
  cluster.Form(3, QuickSpec("2"));
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  const std::size_t lost = SlotsOf(before, "n1");
  cluster.agent("n1").up = false;
  cluster.Run(seconds(19));
  EXPECT_EQ(cluster.map()->epoch, before.epoch);
  cluster.Run(seconds(4));
  const ShardMap after = *cluster.map();
  EXPECT_EQ(after.epoch, before.epoch + 1);
  EXPECT_EQ(SlotsOf(after, "n1"), 0U);
  EXPECT_EQ(Moved(before, after), lost) << "only what the lost node held";
  const PoolStatus status = cluster.pool().status;
  EXPECT_EQ(status.members.lost, 1U);
  EXPECT_EQ(status.last_node_loss.node, "n1");
  EXPECT_EQ(status.last_node_loss.slots_lost, lost);
  EXPECT_EQ(status.slots.assigned, status.slots.total);
  EXPECT_EQ(cluster.condition("Ready"), "True Serving");
  cluster.Run(seconds(12));
  EXPECT_NE(cluster.pool().status.last_node_loss.recovered_at, "");
}

TEST(Controllers, LostNodeThatComesBackRampsAgain) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n1").up = false;
  cluster.Run(seconds(25));
  ASSERT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  cluster.agent("n1").up = true;
  cluster.agent("n1").boot_epoch = 2;
  cluster.agent("n1").maps.clear();
  cluster.Run(seconds(2));
  EXPECT_LT(SlotsOf(*cluster.map(), "n1"), 16384U / 6) << "a share, not all at once";
  cluster.Run(seconds(30));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n1")), 16384.0 / 3, 20);
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
  EXPECT_EQ(cluster.pool().status.members, (MemberCounts{3, 3, 0, 0, 0}));
}

TEST(Controllers, DeletedNodeIsLostWithoutWaiting) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n2").up = false;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kNode, {"", "n2"}, {}).ok());
  cluster.Run(seconds(1));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
  EXPECT_EQ(cluster.map()->members.size(), 2U) << "nobody is left to come back";
}

TEST(Controllers, JoinRampsWithinFivePercentAnEpoch) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.AddAgent("n3", "z0");
  ShardMap last = *cluster.map();
  std::uint64_t epochs = 0;
  for (int i = 0; i < 400; ++i) {
    cluster.Run(milliseconds(100));
    const ShardMap now = *cluster.map();
    if (now.epoch == last.epoch) continue;
    ++epochs;
    EXPECT_LE(Moved(last, now), 16384U / 20) << "epoch " << now.epoch;
    last = now;
  }
  EXPECT_GE(epochs, 5U);
  EXPECT_NEAR(static_cast<double>(SlotsOf(last, "n3")), 4096, 45);
  EXPECT_EQ(last.members.back().state, MemberState::kActive);
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
}

TEST(Controllers, RestartedOperatorGoesOnAndMovesNothing) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
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

TEST(Controllers, NobodyIsLostBeforeOneGraceOfLeadership) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  cluster.KillOperator();
  cluster.agent("n1").up = false;
  cluster.Run(seconds(300));  // long dead when the new leader comes
  const ShardMap before = *cluster.map_of_disk();
  cluster.StartOperator();
  cluster.Run(seconds(19));
  EXPECT_EQ(cluster.map()->epoch, before.epoch);
  cluster.Run(seconds(4));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
}

TEST(Controllers, HigherEpochOfAnAgentIsOutdone) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
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
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kShardMap, {"default", "main"}, {}).ok());
  cluster.Run(seconds(5));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_EQ(cluster.map()->epoch, 2U);
  EXPECT_EQ(cluster.agent("n2").maps.begin()->second.epoch, 2U);
}

TEST(Controllers, SecondAgentOfANameIsRefused) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  FakeAgent twin = cluster.agent("n0");
  twin.agent_uid = "uid-twin";
  twin.pools.clear();
  twin.maps.clear();
  cluster.dialer.agents["127.0.0.1:30001"] = twin;
  cluster.AddPod("agent-n0-twin", "n0", 30001);
  cluster.Run(seconds(12));
  const ShardMap map = *cluster.map();
  EXPECT_EQ(map.epoch, 1U);
  EXPECT_EQ(map.members[0].agent_uid, "uid-n0");
  EXPECT_TRUE(cluster.dialer.agents["127.0.0.1:30001"].pools.empty()) << "told nothing";
  EXPECT_NE(cluster.message("Degraded").find("ALREADY_EXISTS"), std::string::npos);
  EXPECT_NE(cluster.message("Degraded").find("uid-n0"), std::string::npos);

  // While the first may come back the name is its own.
  cluster.agent("n0").up = false;
  cluster.Run(seconds(10));
  EXPECT_TRUE(cluster.dialer.agents["127.0.0.1:30001"].pools.empty());
  // Its pod is gone: the newcomer takes its place, and its slots.
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPod, {kAgentNamespace, "agent-n0"}, {}).ok());
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.dialer.agents["127.0.0.1:30001"].pools.size(), 1U);
  EXPECT_EQ(cluster.map()->members[0].agent_uid, "uid-twin");
  EXPECT_EQ(cluster.map()->members[0].grpc_port, 30001);
  EXPECT_EQ(Moved(map, *cluster.map()), 0U);
}

TEST(Controllers, CopyOfAnAgentIsRefusedWhileTheFirstIsConnected) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  FakeAgent twin = cluster.agent("n0");  // the same agentUID: a copied state directory
  twin.pools.clear();
  cluster.dialer.agents["127.0.0.1:30001"] = twin;
  cluster.AddPod("agent-n0-twin", "n0", 30001);
  cluster.Run(seconds(12));
  EXPECT_TRUE(cluster.dialer.agents["127.0.0.1:30001"].pools.empty());
  EXPECT_NE(cluster.message("Degraded").find("ALREADY_EXISTS"), std::string::npos);
}

TEST(Controllers, AgentMayComeBackAtAnotherAddress) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  const ShardMap before = *cluster.map();
  FakeAgent moved = cluster.agent("n1");
  cluster.agent("n1").up = false;
  moved.boot_epoch = 2;
  moved.maps.clear();
  cluster.dialer.agents["127.0.0.1:30002"] = moved;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPod, {kAgentNamespace, "agent-n1"}, {}).ok());
  cluster.AddPod("agent-n1", "n1", 30002);
  cluster.Run(seconds(10));
  const ShardMap after = *cluster.map();
  EXPECT_EQ(after.epoch, before.epoch + 1);
  EXPECT_EQ(after.members[1].grpc_port, 30002);
  EXPECT_EQ(after.table, before.table);
}

TEST(Controllers, AgentOfAnotherNodeIsNotBelieved) {
  Cluster cluster;
  cluster.AddAgent("n0");
  cluster.agent("n0").node_name = "n9";
  cluster.ApplyPool(QuickSpec());
  cluster.Run(seconds(15));
  EXPECT_FALSE(cluster.map().has_value());
  EXPECT_NE(cluster.message("Degraded").find("says it is node n9"), std::string::npos);
}

TEST(Controllers, DrainAnnotationMovesSlotsAndIsTakenBack) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.EditNode("n2", R"(,"annotations":{"kvfabric.io/drain":"true"})", "{}");
  cluster.Run(seconds(3));
  EXPECT_TRUE(cluster.agent("n2").draining);
  EXPECT_FALSE(cluster.agent("n1").draining);
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
  EXPECT_EQ(cluster.map()->members[2].state, MemberState::kDraining) << "its bytes are still there";
  EXPECT_EQ(cluster.condition("Progressing"), "True NodesDraining");
  cluster.agent("n2").drain_done = true;
  cluster.Run(seconds(12));
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
  EXPECT_EQ(cluster.pool().status.members, (MemberCounts{2, 2, 0, 1, 0}));

  cluster.EditNode("n2", "", "{}");
  cluster.Run(seconds(2));
  EXPECT_FALSE(cluster.agent("n2").draining);
  cluster.Run(seconds(40));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n2")), 16384.0 / 3, 20);
}

TEST(Controllers, DrainedNodeThatGoesIsNoLoss) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  cluster.EditNode("n2", R"(,"annotations":{"kvfabric.io/drain":"true"})", "{}");
  cluster.agent("n2").drain_done = true;
  cluster.Run(seconds(5));
  cluster.agent("n2").up = false;
  cluster.Run(seconds(5));
  EXPECT_EQ(cluster.map()->members.size(), 2U);
  cluster.Run(seconds(30));
  EXPECT_EQ(cluster.pool().status.last_node_loss.node, "");
  EXPECT_EQ(cluster.condition("Degraded"), "False AllWell");
}

TEST(Controllers, CordonDrainsUnlessThePoolSaysNo) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  cluster.EditNode("n1", "", R"({"unschedulable":true})");
  cluster.Run(seconds(2));
  EXPECT_TRUE(cluster.agent("n1").draining);
  cluster.ApplyPool(QuickSpec("1", R"(,"drainOnCordon":false)"));
  cluster.Run(seconds(2));
  EXPECT_FALSE(cluster.agent("n1").draining);
}

TEST(Controllers, RestartOfAnAgentIsAHold) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  FakeAgent& agent = cluster.agent("n1");
  agent.up = false;
  cluster.Run(seconds(4));
  agent.up = true;
  agent.boot_epoch = 2;
  agent.recovering = true;
  agent.ready = false;
  agent.maps.clear();
  agent.pools.clear();
  cluster.Run(seconds(8));
  EXPECT_EQ(cluster.map()->table, before.table);
  EXPECT_EQ(cluster.pool().status.members.recovering, 1U);
  agent.recovering = false;
  agent.ready = true;
  cluster.Run(seconds(12));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(agent.maps.begin()->second, before) << "the map was sent again";
  EXPECT_EQ(cluster.pool().status.members, (MemberCounts{3, 3, 0, 0, 0}));
}

// One node down for 30 s in every minute, with the default grace: not one byte moves.
TEST(Controllers, FlappingNodeMovesNothing) {
  Cluster cluster;
  cluster.Form(3, Cluster::Spec());
  cluster.Run(seconds(310));
  const ShardMap before = *cluster.map();
  for (int i = 0; i < 30; ++i) {
    cluster.agent("n1").up = false;
    cluster.Run(seconds(30));
    cluster.agent("n1").up = true;
    ++cluster.agent("n1").boot_epoch;
    cluster.Run(seconds(30));
  }
  EXPECT_EQ(cluster.map()->table, before.table);
  EXPECT_EQ(cluster.map()->epoch, before.epoch);
}

TEST(Controllers, CrashedAgentsDoNotPileUp) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  for (int i = 0; i < 200; ++i) {
    const std::string node = "extra-" + std::to_string(i);
    cluster.AddAgent(node);
    cluster.Run(seconds(1));
    cluster.agent(node).up = false;
    ASSERT_TRUE(
        cluster.api().Delete(kube::Kind::kPod, {kAgentNamespace, "agent-" + node}, {}).ok());
    ASSERT_TRUE(cluster.api().Delete(kube::Kind::kNode, {"", node}, {}).ok());
  }
  cluster.Run(seconds(40));
  EXPECT_EQ(cluster.loop().registry().agents().size(), 3U);
  EXPECT_EQ(cluster.dialer.open_links(), 3U);
  EXPECT_EQ(cluster.map()->members.size(), 3U);
}

TEST(Controllers, VanishedPoolIsDroppedAndItsMapGoes) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  cluster.ApplyPool(Cluster::Spec("", "2Gi"), "other");
  cluster.Run(seconds(10));
  const std::string uid = cluster.pool("other").meta.uid;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPool, {"default", "other"}, {}).ok());
  cluster.Run(seconds(3));
  EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{uid});
  EXPECT_FALSE(cluster.map("other").has_value());
  EXPECT_EQ(cluster.agent("n0").pools.size(), 1U);
}

TEST(Controllers, PoolMadeAgainUnderItsNameIsAnother) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  const std::string old_uid = cluster.pool().meta.uid;
  ASSERT_TRUE(cluster.api().Delete(kube::Kind::kPool, {"default", "main"}, {}).ok());
  cluster.ApplyPool(QuickSpec());
  cluster.Run(seconds(10));
  ASSERT_TRUE(cluster.map().has_value());
  EXPECT_NE(cluster.map()->pool_uid, old_uid);
  EXPECT_EQ(cluster.map()->epoch, 1U) << "another UID starts a new sequence";
  EXPECT_EQ(cluster.agent("n0").dropped_pools, std::set<std::string>{old_uid});
}

TEST(Controllers, AgentThatHangsDoesNotHoldUpTheOthers) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.agent("n0").refuses_maps = true;
  cluster.agent("n2").up = false;
  cluster.Run(seconds(40));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
  EXPECT_EQ(cluster.agent("n1").maps.begin()->second.epoch, cluster.map()->epoch);
  EXPECT_EQ(cluster.condition("ShardMapConverged"), "False Spreading");
  EXPECT_NE(cluster.message("Degraded").find("n0"), std::string::npos);
  const std::size_t messages = cluster.agent("n0").map_messages;
  cluster.Run(seconds(20));
  EXPECT_LE(cluster.agent("n0").map_messages - messages, 11U) << "tried again, at its pace";
  cluster.agent("n0").refuses_maps = false;
  cluster.Run(seconds(5));
  EXPECT_EQ(cluster.condition("ShardMapConverged"), "True Applied");
}

TEST(Controllers, FailingWritesFollowTheBackoff) {
  Cluster cluster;
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
  cluster.ApplyPool(QuickSpec());
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
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  cluster.fault = [](const char*) { return Unavailable("disk gone"); };
  cluster.Run(seconds(7));
  EXPECT_FALSE(cluster.elector().leading());
  EXPECT_EQ(cluster.dialer.open_links(), 0U);
  cluster.fault = nullptr;
  cluster.Run(seconds(15));
  EXPECT_TRUE(cluster.elector().leading());
  EXPECT_EQ(cluster.elector().term(), 2U);
  EXPECT_EQ(cluster.agent("n0").highest_term, 2U);
  EXPECT_EQ(cluster.map()->epoch, 1U);
}

TEST(Controllers, OldLeaderIsRefusedByTheAgents) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
  cluster.agent("n0").highest_term = 9;  // a newer leader has been there
  ++cluster.agent("n0").boot_epoch;      // the stream is dialled again
  cluster.agent("n0").maps.clear();
  cluster.Run(seconds(10));
  EXPECT_TRUE(cluster.agent("n0").maps.empty());
  EXPECT_EQ(cluster.agent("n0").highest_term, 9U);
}

TEST(Controllers, PausedPoolIsLeftAsItIs) {
  Cluster cluster;
  cluster.Form(3, QuickSpec());
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  std::string spec = QuickSpec();
  spec.pop_back();
  cluster.ApplyPool(spec + R"(,"paused":true})");
  cluster.AddAgent("n3");
  cluster.agent("n1").up = false;
  cluster.Run(seconds(40));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.pool().status.rebalance.state, "Paused");
  cluster.ApplyPool(QuickSpec());
  cluster.Run(seconds(40));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  EXPECT_GT(SlotsOf(*cluster.map(), "n3"), 0U);
}

TEST(Controllers, StatusIsWrittenAtMostEveryTenSeconds) {
  Cluster cluster;
  cluster.Form(2, QuickSpec());
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
    Cluster cluster;
    int renames = 0;
    bool dead = false;
    cluster.fault = [&](const char* step) {
      if (dead) return Unavailable("dead");
      if (std::string(step) == "sync_directory" && ++renames == die_at) dead = true;
      return Status::Ok();
    };
    cluster.AddAgentTolerant("n0");
    cluster.AddAgentTolerant("n1");
    cluster.ApplyPoolTolerant(QuickSpec());
    cluster.Run(seconds(8));
    cluster.KillOperator();
    cluster.fault = nullptr;
    cluster.StartOperator();
    cluster.AddAgentTolerant("n0");
    cluster.AddAgentTolerant("n1");
    cluster.ApplyPoolTolerant(QuickSpec());
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
