// rebalance.mode Propose: what is shown, what an approval lets happen, and what does not wait.

#include "operator/controllers/proposal.h"

#include <gtest/gtest.h>

#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::seconds;

class Proposals : public ::testing::Test {
 protected:
  static std::string Propose(const std::string& replicas = "1") {
    return OperatorCluster::QuickSpec(replicas, R"(,"mode":"Propose")");
  }
  void Form(const std::string& replicas = "1") {
    cluster.Form(3, Propose(replicas));
    cluster.Run(seconds(25));
  }
  ProposalStatus proposal() { return cluster.pool().status.rebalance.proposal; }
  void Approve(const std::string& id) { cluster.AnnotatePool(kApproveAnnotation, id); }

  OperatorCluster cluster;
};

TEST_F(Proposals, JoinWaitsAndIsShownWithItsCost) {
  Form();
  EXPECT_EQ(proposal().id, "");
  for (const char* node : {"n0", "n1", "n2"}) cluster.agent(node).used_bytes = 1ULL << 29U;
  cluster.Run(seconds(1));
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const ProposalStatus shown = proposal();
  EXPECT_EQ(shown.id.size(), 13U) << shown.id;
  EXPECT_EQ(shown.reason, "node n3 joins");
  EXPECT_GE(shown.slots, 4096U);
  EXPECT_NEAR(static_cast<double>(shown.bytes), 3.0 * (1ULL << 29U) / 4, 1 << 24);
  EXPECT_GE(shown.eta_seconds, 5U) << "five steps at least";
  EXPECT_NE(shown.created_at, "");
  EXPECT_FALSE(shown.approved);
  EXPECT_EQ(cluster.pool().status.rebalance.state, "Waiting");
  EXPECT_EQ(cluster.condition("Progressing"), "False WaitsForApproval");
  EXPECT_NE(cluster.message("Progressing").find("kvfabric.io/approve=" + shown.id),
            std::string::npos)
      << cluster.message("Progressing");

  const ShardMap before = *cluster.map();
  EXPECT_EQ(before.members.size(), 4U) << "a member, without slots";
  for (const char* node : {"n0", "n1", "n2"}) cluster.agent(node).used_bytes += 12'345'678;
  const std::uint64_t writes = cluster.writes();
  cluster.Run(seconds(300));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(proposal(), shown) << "the same as long as the plan is";
  EXPECT_LE(cluster.writes(), writes + 2);
}

TEST_F(Proposals, ApprovalLetsItHappenInSteps) {
  Form();
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const std::string id = proposal().id;
  Approve("000000-000000");
  cluster.Run(seconds(20));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n3"), 0U) << "of another plan";
  Approve(id);
  ShardMap last = *cluster.map();
  bool seen = false;
  for (int i = 0; i < 600; ++i) {
    cluster.Run(std::chrono::milliseconds(100));
    const ShardMap now = *cluster.map();
    EXPECT_LE(Moved(last, now), 16384U / 20);
    last = now;
    if (proposal().approved) seen = proposal().id == id;
  }
  EXPECT_TRUE(seen);
  EXPECT_NEAR(static_cast<double>(SlotsOf(last, "n3")), 4096, 20);
  const RebalanceStatus status = cluster.pool().status.rebalance;
  EXPECT_EQ(status.proposal.id, "");
  EXPECT_EQ(status.last_approved, id);
  EXPECT_EQ(status.state, "Idle");
  EXPECT_EQ(cluster.condition("Progressing"), "False Settled");
}

TEST_F(Proposals, ChangedPlanVoidsTheApproval) {
  Form();
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const std::string first = proposal().id;
  cluster.AddAgent("n4", "z1");
  cluster.Run(seconds(5));
  const std::string second = proposal().id;
  EXPECT_NE(first, second);
  Approve(first);
  cluster.Run(seconds(60));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n3") + SlotsOf(*cluster.map(), "n4"), 0U);
  EXPECT_EQ(proposal().id, second);
}

TEST_F(Proposals, LossAndDrainDoNotWait) {
  Form("2");
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const std::string id = proposal().id;
  cluster.agent("n1").up = false;
  cluster.Run(seconds(25));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  EXPECT_EQ(cluster.pool().status.slots.under_replicated, 0U);
  EXPECT_NE(proposal().id, id) << "the plan is another one now";
  cluster.EditNode("n2", R"(,"annotations":{"kvfabric.io/drain":"true"})", "{}");
  cluster.Run(seconds(3));
  EXPECT_TRUE(cluster.agent("n2").draining);
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
}

// The members change while approved moves are under way: they end, and wait again.
TEST_F(Proposals, LossInTheMiddleEndsTheApproval) {
  Form();
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const std::string id = proposal().id;
  Approve(id);
  cluster.Run(seconds(3));
  ASSERT_TRUE(proposal().approved);
  cluster.agent("n1").up = false;
  cluster.DeleteNode("n1");
  cluster.Run(seconds(3));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  const ShardMap after = *cluster.map();
  EXPECT_FALSE(proposal().approved);
  EXPECT_NE(proposal().id, id);
  EXPECT_EQ(cluster.pool().status.rebalance.last_approved, id);
  cluster.Run(seconds(60));
  EXPECT_EQ(cluster.map()->table, after.table);
}

TEST_F(Proposals, NewLeaderShowsTheSameAndGoesOnWithWhatWasApproved) {
  Form();
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const ProposalStatus shown = proposal();
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(20));
  EXPECT_EQ(proposal(), shown);
  Approve(shown.id);
  cluster.Run(seconds(2));
  ASSERT_TRUE(proposal().approved);
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(60));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n3")), 4096, 20);
  EXPECT_EQ(cluster.pool().status.rebalance.last_approved, shown.id);
}

// The annotation stays on the pool: the same moves another day need a new yes. (ConsistentHash
// plans the very same moves each time.)
TEST_F(Proposals, ApprovalIsGoodForOneTime) {
  cluster.Form(3, OperatorCluster::Spec(R"("sharding":{"algorithm":"ConsistentHash"},)"
                                        R"("rebalance":{"mode":"Propose","joinWarmup":"10s"})"));
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  const std::string first = proposal().id;
  Approve(first);
  cluster.Run(seconds(60));
  ASSERT_GT(SlotsOf(*cluster.map(), "n3"), 3000U);
  const std::string zone = R"(,"labels":{"topology.kubernetes.io/zone":"z0"})";
  cluster.EditNode("n3", zone + R"(,"annotations":{"kvfabric.io/drain":"true"})", "{}");
  cluster.Run(seconds(5));
  ASSERT_EQ(SlotsOf(*cluster.map(), "n3"), 0U);
  cluster.EditNode("n3", zone, "{}");
  cluster.Run(seconds(40));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n3"), 0U);
  EXPECT_NE(proposal().id, first);
  EXPECT_EQ(proposal().id.substr(0, 6), first.substr(0, 6)) << "for the same members";
}

TEST_F(Proposals, AutomaticModeNeedsNoYes) {
  Form();
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(5));
  ASSERT_NE(proposal().id, "");
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(60));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n3")), 4096, 20);
  EXPECT_EQ(proposal().id, "");
}

TEST_F(Proposals, PausedModeShowsAndMovesNothing) {
  cluster.Form(3, OperatorCluster::QuickSpec("1", R"(,"mode":"Paused")"));
  cluster.AddAgent("n3", "z0");
  cluster.Run(seconds(60));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n3"), 0U);
  EXPECT_EQ(proposal().id, "");
  EXPECT_EQ(cluster.pool().status.rebalance.state, "Paused");
}

// A planner that heeds no limit is held back all the same.
TEST_F(Proposals, HoldBackPlannersThatPlanAsAWhole) {
  for (const char* algorithm : {"Range", "ConsistentHash"}) {
    OperatorCluster other;
    other.Form(3, OperatorCluster::Spec(std::string(R"("sharding":{"algorithm":")") + algorithm +
                                        R"("},"rebalance":{"mode":"Propose","joinWarmup":"10s"})"));
    const ShardMap before = *other.map();
    other.AddAgent("n3", "z0");
    other.Run(seconds(40));
    EXPECT_EQ(Moved(before, *other.map()), 0U) << algorithm;
    const ProposalStatus shown = other.pool().status.rebalance.proposal;
    ASSERT_NE(shown.id, "") << algorithm;
    other.AnnotatePool(kApproveAnnotation, shown.id);
    other.Run(seconds(60));
    EXPECT_GT(SlotsOf(*other.map(), "n3"), 3000U) << algorithm;
    EXPECT_EQ(other.pool().status.rebalance.last_approved, shown.id) << algorithm;
  }
}

}  // namespace
}  // namespace kvfabric
