// Nodes that join, fall silent, are lost, drain, come back or pretend to be another.

#include <gtest/gtest.h>

#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Membership, SilenceWithinGraceMovesNothing) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

TEST(Membership, LossAfterGraceGivesTheSlotsAway) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec("2"));
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

TEST(Membership, LostNodeThatComesBackRampsAgain) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

TEST(Membership, DeletedNodeIsLostWithoutWaiting) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n2").up = false;
  cluster.DeleteNode("n2");
  cluster.Run(seconds(1));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
  EXPECT_EQ(cluster.map()->members.size(), 2U) << "nobody is left to come back";
}

TEST(Membership, JoinRampsWithinFivePercentAnEpoch) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.AddAgent("n3", "z0");
  ShardMap last = *cluster.map();
  std::uint64_t epochs = 0;
  for (int i = 0; i < 400; ++i) {
    cluster.Run(milliseconds(100));
    const ShardMap now = *cluster.loop().reconciler().map({"default", "main"});
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

TEST(Membership, NobodyIsLostBeforeOneGraceOfLeadership) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

// The new leader has heard nobody in its first seconds: that is no sign of life of the dead one.
TEST(Membership, LostNodeStaysLostThroughAChangeOfLeaders) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n1").up = false;
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  ASSERT_EQ(SlotsOf(before, "n1"), 0U);
  for (int i = 0; i < 5; ++i) {
    cluster.KillOperator();
    cluster.StartOperator();
    cluster.Run(seconds(30));
    EXPECT_EQ(*cluster.map(), before);
  }
}

TEST(Membership, SecondAgentOfANameIsRefused) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
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
  cluster.DeletePod("agent-n0");
  cluster.Run(seconds(10));
  EXPECT_EQ(cluster.dialer.agents["127.0.0.1:30001"].pools.size(), 1U);
  EXPECT_EQ(cluster.map()->members[0].agent_uid, "uid-twin");
  EXPECT_EQ(cluster.map()->members[0].grpc_port, 30001);
  EXPECT_EQ(Moved(map, *cluster.map()), 0U);
}

TEST(Membership, CopyOfAnAgentIsRefusedWhileTheFirstIsConnected) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  FakeAgent twin = cluster.agent("n0");  // the same agentUID: a copied state directory
  twin.pools.clear();
  cluster.dialer.agents["127.0.0.1:30001"] = twin;
  cluster.AddPod("agent-n0-twin", "n0", 30001);
  cluster.Run(seconds(12));
  EXPECT_TRUE(cluster.dialer.agents["127.0.0.1:30001"].pools.empty());
  EXPECT_NE(cluster.message("Degraded").find("ALREADY_EXISTS"), std::string::npos);
}

TEST(Membership, AgentMayComeBackAtAnotherAddress) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  const ShardMap before = *cluster.map();
  FakeAgent moved = cluster.agent("n1");
  cluster.agent("n1").up = false;
  moved.boot_epoch = 2;
  moved.maps.clear();
  cluster.dialer.agents["127.0.0.1:30002"] = moved;
  cluster.DeletePod("agent-n1");
  cluster.AddPod("agent-n1", "n1", 30002);
  cluster.Run(seconds(10));
  const ShardMap after = *cluster.map();
  EXPECT_EQ(after.epoch, before.epoch + 1);
  EXPECT_EQ(after.members[1].grpc_port, 30002);
  EXPECT_EQ(after.table, before.table);
}

TEST(Membership, AgentOfAnotherNodeIsNotBelieved) {
  OperatorCluster cluster;
  cluster.AddAgent("n0");
  cluster.agent("n0").node_name = "n9";
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(15));
  EXPECT_FALSE(cluster.map().has_value());
  EXPECT_NE(cluster.message("Degraded").find("says it is node n9"), std::string::npos);
}

TEST(Membership, DrainAnnotationMovesSlotsAndIsTakenBack) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

TEST(Membership, DrainedNodeThatGoesIsNoLoss) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

TEST(Membership, CordonDrainsUnlessThePoolSaysNo) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  cluster.EditNode("n1", "", R"({"unschedulable":true})");
  cluster.Run(seconds(2));
  EXPECT_TRUE(cluster.agent("n1").draining);
  cluster.ApplyPool(OperatorCluster::QuickSpec("1", R"(,"drainOnCordon":false)"));
  cluster.Run(seconds(2));
  EXPECT_FALSE(cluster.agent("n1").draining);
}

TEST(Membership, RestartOfAnAgentIsAHold) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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
TEST(Membership, FlappingNodeMovesNothing) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::Spec());
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

TEST(Membership, CrashedAgentsDoNotPileUp) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  for (int i = 0; i < 200; ++i) {
    const std::string node = "extra-" + std::to_string(i);
    cluster.AddAgent(node);
    cluster.Run(seconds(1));
    cluster.agent(node).up = false;
    cluster.DeletePod("agent-" + node);
    cluster.DeleteNode(node);
  }
  cluster.Run(seconds(40));
  EXPECT_EQ(cluster.loop().registry().agents().size(), 3U);
  EXPECT_EQ(cluster.dialer.open_links(), 3U);
  EXPECT_EQ(cluster.map()->members.size(), 3U);
}

TEST(Membership, AgentThatHangsDoesNotHoldUpTheOthers) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
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

}  // namespace
}  // namespace kvfabric
