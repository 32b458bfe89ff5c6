#include "operator/controllers/leave_signal.h"

#include <gtest/gtest.h>

#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct TaintCase {
  Taint taint;
  bool leaves;
  bool may_join;
};

TEST(LeaveSignal, TaintsThatEndANodeAndThoseThatDoNot) {
  const TaintCase cases[] = {
      {{"ToBeDeletedByClusterAutoscaler", "1790000000", "NoSchedule"}, true, false},
      {{"DeletionCandidateOfClusterAutoscaler", "1790000000", "PreferNoSchedule"}, false, true},
      {{"karpenter.sh/disrupted", "", "NoSchedule"}, true, false},
      {{"karpenter.sh/disruption", "disrupting", "NoSchedule"}, true, false},
      {{"karpenter.sh/disruption", "candidate", "PreferNoSchedule"}, false, true},
      {{"karpenter.sh/unregistered", "", "NoSchedule"}, false, false},
      {{"node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute"}, true, false},
      {{"cloud.google.com/impending-node-termination", "", "NoSchedule"}, true, false},
      {{"aws-node-termination-handler/spot-itn", "x", "NoSchedule"}, true, false},
      {{"aws-node-termination-handler/scheduled-maintenance", "x", "NoExecute"}, true, false},
      {{"aws-node-termination-handler/asg-lifecycle-termination", "x", "NoSchedule"}, true, false},
      {{"aws-node-termination-handler/rebalance-recommendation", "x", "NoSchedule"}, true, false},
      // Kubernetes' own judgement of the node's health: a hold, not a leave.
      {{"node.kubernetes.io/not-ready", "", "NoExecute"}, false, true},
      {{"node.kubernetes.io/not-ready", "", "NoSchedule"}, false, true},
      {{"node.kubernetes.io/unreachable", "", "NoExecute"}, false, true},
      {{"node.kubernetes.io/disk-pressure", "", "NoSchedule"}, false, true},
      {{"node.kubernetes.io/memory-pressure", "", "NoSchedule"}, false, true},
      {{"node.kubernetes.io/network-unavailable", "", "NoSchedule"}, false, true},
      // Follows spec.unschedulable, which is what counts.
      {{"node.kubernetes.io/unschedulable", "", "NoSchedule"}, false, true},
      {{"node.cilium.io/agent-not-ready", "", "NoExecute"}, false, false},
      // A marker for as long as the node lives.
      {{"kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"}, false, false},
      {{"dedicated", "db", "NoSchedule"}, false, false},
      {{"dedicated", "db", "NoExecute"}, true, false},
      {{"dedicated", "db", "PreferNoSchedule"}, false, true},
  };
  for (const TaintCase& c : cases) {
    NodeFacts node;
    node.taints = {c.taint};
    const std::string said = c.taint.key + "=" + c.taint.value + ":" + c.taint.effect;
    EXPECT_EQ(!LeaveSignal(PoolSpec{}, node).empty(), c.leaves) << said;
    EXPECT_EQ(MayJoin(PoolSpec{}, node), c.may_join) << said;
  }
}

TEST(LeaveSignal, ATolerationKeepsMembersButNotAgainstTheEndOfTheNode) {
  PoolSpec spec;
  spec.placement.tolerations = {{"", "Exists", "", ""}};  // everything
  NodeFacts node;
  node.taints = {{"dedicated", "db", "NoExecute"}};
  EXPECT_EQ(LeaveSignal(spec, node), "");
  EXPECT_TRUE(MayJoin(spec, node));
  node.taints = {{"ToBeDeletedByClusterAutoscaler", "1", "NoSchedule"}};
  EXPECT_EQ(LeaveSignal(spec, node), "taint ToBeDeletedByClusterAutoscaler");
  EXPECT_FALSE(MayJoin(spec, node));
}

TEST(LeaveSignal, CordonAnnotationAndSelector) {
  PoolSpec spec;
  NodeFacts node;
  node.unschedulable = true;
  EXPECT_EQ(LeaveSignal(spec, node), "cordoned");
  spec.rebalance.drain_on_cordon = false;
  EXPECT_EQ(LeaveSignal(spec, node), "");
  node.drain_asked = true;
  EXPECT_EQ(LeaveSignal(spec, node), "annotation kvfabric.io/drain");
  node.drain_asked = false;
  spec.placement.node_selector = {{"gpu", "h200"}};
  EXPECT_EQ(LeaveSignal(spec, node), "spec.placement.nodeSelector does not cover it");
  node.labels = {{"gpu", "h200"}};
  EXPECT_EQ(LeaveSignal(spec, node), "");
}

TEST(LeaveSignal, CordonStartsMovingWithinFiveSecondsAndUncordonReturnsTheSlots) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec("2"));
  cluster.EditNode("n2", "", R"({"unschedulable":true})");
  milliseconds waited{0};
  while (!cluster.agent("n2").draining && waited < seconds(5)) {
    cluster.Run(milliseconds(100));
    waited += milliseconds(100);
  }
  EXPECT_TRUE(cluster.agent("n2").draining);
  EXPECT_EQ(SlotsOf(*cluster.map(), "n2"), 0U);
  EXPECT_FALSE(cluster.agent("n1").draining);

  cluster.EditNode("n2", "", "{}");
  waited = milliseconds(0);
  while (cluster.agent("n2").draining && waited < seconds(5)) {
    cluster.Run(milliseconds(100));
    waited += milliseconds(100);
  }
  EXPECT_FALSE(cluster.agent("n2").draining);
  cluster.Run(seconds(60));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n2")), 16384.0 * 2 / 3, 40);
  EXPECT_EQ(cluster.pool().status.members, (MemberCounts{3, 3, 0, 0, 0}));
}

TEST(LeaveSignal, NodeThatIsNotReadyIsHeldAndOneThatEndsIsDrained) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  const std::string zone = R"(,"labels":{"topology.kubernetes.io/zone":"z1"})";
  cluster.EditNode("n1", zone,
                   R"({"taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoExecute"},)"
                   R"({"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]})");
  cluster.Run(seconds(60));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_FALSE(cluster.agent("n1").draining);
  cluster.EditNode("n1", zone,
                   R"({"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1",)"
                   R"("effect":"NoSchedule"}]})");
  cluster.Run(seconds(2));
  EXPECT_TRUE(cluster.agent("n1").draining);
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
}

}  // namespace
}  // namespace kvfabric
