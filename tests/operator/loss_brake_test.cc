#include "operator/controllers/loss_brake.h"

#include <gtest/gtest.h>

#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Members "z0-0", "z0-1", ... of zones of the given sizes; the first `silent[z]` of each are
// silent.
std::vector<LossCandidate> Pool(const std::vector<int>& sizes, const std::vector<int>& silent) {
  std::vector<LossCandidate> out;
  for (std::size_t zone = 0; zone < sizes.size(); ++zone) {
    for (int i = 0; i < sizes[zone]; ++i) {
      const std::string name = "z" + std::to_string(zone);
      out.push_back({name + "-" + std::to_string(i), name, i < silent[zone], {}, false});
    }
  }
  return out;
}

std::size_t HeldOf(const std::vector<int>& sizes, const std::vector<int>& silent) {
  return FindMassFailure(Pool(sizes, silent), {}).size();
}

TEST(LossBrake, OneNodeIsNeverMany) {
  EXPECT_EQ(HeldOf({1}, {1}), 0U);
  EXPECT_EQ(HeldOf({2}, {1}), 0U);
  EXPECT_EQ(HeldOf({1, 1, 1}, {1, 0, 0}), 0U);
  EXPECT_EQ(HeldOf({4, 1}, {0, 1}), 0U) << "nor is a zone of one";
}

TEST(LossBrake, MoreThanAFifthOfThePoolIsMany) {
  EXPECT_EQ(HeldOf({3}, {2}), 2U);
  EXPECT_EQ(HeldOf({10}, {2}), 0U) << "a fifth is not more than a fifth";
  EXPECT_EQ(HeldOf({9}, {2}), 2U);
  EXPECT_EQ(HeldOf({100}, {20}), 0U);
  EXPECT_EQ(HeldOf({100}, {21}), 21U);
}

TEST(LossBrake, MostOfAZoneIsMany) {
  EXPECT_EQ(HeldOf({3, 20, 20}, {2, 0, 0}), 0U) << "two nodes are no zone";
  EXPECT_EQ(HeldOf({3, 20, 20}, {3, 0, 0}), 3U);
  EXPECT_EQ(HeldOf({10, 40, 40}, {5, 0, 0}), 0U);
  EXPECT_EQ(HeldOf({10, 40, 40}, {6, 0, 0}), 6U);
  EXPECT_EQ(HeldOf({10, 40, 40}, {6, 1, 0}), 6U) << "a node elsewhere is judged by its own zone";
}

TEST(LossBrake, SilencesFarApartAreCountedApart) {
  std::vector<LossCandidate> members = Pool({5}, {3});
  members[1].since += seconds(59);
  members[2].since += seconds(200);
  EXPECT_EQ(FindMassFailure(members, {}), (std::set<std::string>{"z0-0", "z0-1"}));
  members[1].since += seconds(30);
  EXPECT_TRUE(FindMassFailure(members, {}).empty());
}

// Of three that fell together one was confirmed and given up: the other two stay held.
TEST(LossBrake, OnesGivenUpCountWithThoseThatFellBesideThem) {
  std::vector<LossCandidate> members = Pool({12}, {3});
  EXPECT_EQ(FindMassFailure(members, {}).size(), 3U);
  members[0].lost = true;
  EXPECT_EQ(FindMassFailure(members, {}), (std::set<std::string>{"z0-1", "z0-2"}));
  members[0].since -= seconds(3600);
  EXPECT_TRUE(FindMassFailure(members, {}).empty()) << "lost long ago: another story";
}

TEST(LossBrake, ConfirmationNamesNodesOrAll) {
  EXPECT_TRUE(LossIsConfirmed("*", "n1"));
  EXPECT_TRUE(LossIsConfirmed("n1", "n1"));
  EXPECT_TRUE(LossIsConfirmed("n0, n1 ,n2", "n1"));
  EXPECT_FALSE(LossIsConfirmed("n10", "n1"));
  EXPECT_FALSE(LossIsConfirmed("", "n1"));
  EXPECT_FALSE(LossIsConfirmed(",", "n1"));
}

class MassFailure : public ::testing::Test {
 protected:
  // Nine nodes in three zones, two copies, one grace of leadership behind.
  void SetUp() override {
    cluster.Form(9, OperatorCluster::QuickSpec("2"));
    cluster.Run(seconds(25));
    before = *cluster.map();
  }
  void Silence(const std::vector<int>& nodes, bool silent) {
    for (const int node : nodes) cluster.agent("n" + std::to_string(node)).silent = silent;
  }

  OperatorCluster cluster;
  ShardMap before;
};

TEST_F(MassFailure, ZoneThatFallsSilentIsHeldUntilItReturns) {
  Silence({0, 3, 6}, true);
  cluster.Run(seconds(120));
  EXPECT_EQ(*cluster.map(), before) << "nobody lost, nothing moved";
  EXPECT_EQ(cluster.condition("Degraded"), "True MassFailure");
  const std::string said = cluster.message("Degraded");
  EXPECT_NE(said.find("3 of 9 nodes"), std::string::npos) << said;
  EXPECT_NE(said.find("n0, n3, n6"), std::string::npos) << said;
  EXPECT_NE(said.find("kubectl -n default annotate kvp main kvfabric.io/confirm-loss="),
            std::string::npos)
      << said;
  EXPECT_EQ(cluster.condition("Ready"), "True Serving") << "second owners answer";
  Silence({0, 3, 6}, false);
  cluster.Run(seconds(15));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.condition("Degraded"), "False AllWell");
}

TEST_F(MassFailure, ConfirmedLossIsGivenAway) {
  Silence({0, 3, 6}, true);
  cluster.Run(seconds(30));
  ASSERT_EQ(cluster.map()->epoch, before.epoch);
  cluster.AnnotatePool("kvfabric.io/confirm-loss", "n3");
  cluster.Run(seconds(2));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n3"), 0U);
  EXPECT_GT(SlotsOf(*cluster.map(), "n0"), 0U);
  EXPECT_EQ(cluster.condition("Degraded"), "True MassFailure") << "the others are still held";
  cluster.AnnotatePool("kvfabric.io/confirm-loss", "*");
  cluster.Run(seconds(5));
  const ShardMap after = *cluster.map();
  for (const char* node : {"n0", "n3", "n6"}) EXPECT_EQ(SlotsOf(after, node), 0U) << node;
  EXPECT_EQ(cluster.pool().status.slots.assigned, 16384U);
  EXPECT_EQ(cluster.condition("Degraded"), "True NodesMissing");
  EXPECT_NE(cluster.message("ConfigValid").find("confirm-loss is set"), std::string::npos)
      << cluster.message("ConfigValid");
}

TEST_F(MassFailure, TwoZonesDownAndNobodyIsLost) {
  Silence({0, 3, 6, 1, 4, 7}, true);
  cluster.Run(seconds(300));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.condition("Degraded"), "True MassFailure");
}

TEST_F(MassFailure, TheBrakeHoldsThroughAChangeOfLeaders) {
  Silence({0, 3, 6}, true);
  cluster.Run(seconds(30));
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(90));
  EXPECT_EQ(*cluster.map(), before);
  EXPECT_EQ(cluster.condition("Degraded"), "True MassFailure");
}

TEST_F(MassFailure, DeletedNodesAreGoneForGood) {
  Silence({0, 3, 6}, true);
  cluster.Run(seconds(25));
  for (const char* node : {"n0", "n3", "n6"}) cluster.DeleteNode(node);
  cluster.Run(seconds(2));
  EXPECT_EQ(cluster.map()->members.size(), 6U);
  EXPECT_EQ(cluster.pool().status.slots.assigned, 16384U);
}

TEST_F(MassFailure, NothingMovesForBalanceMeanwhile) {
  Silence({0, 3, 6}, true);
  cluster.Run(seconds(5));
  cluster.AddAgent("n9", "z0");
  cluster.Run(seconds(60));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n9"), 0U);
  EXPECT_EQ(Moved(before, *cluster.map()), 0U);
  Silence({0, 3, 6}, false);
  cluster.Run(seconds(60));
  EXPECT_GT(SlotsOf(*cluster.map(), "n9"), 16384U * 2 / 10 / 2);
}

TEST(LossBrake, OneNodeOfThreeIsStillGivenUp) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n1").silent = true;
  cluster.Run(seconds(25));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  EXPECT_EQ(cluster.condition("Degraded"), "True NodesMissing");
}

}  // namespace
}  // namespace kvfabric
