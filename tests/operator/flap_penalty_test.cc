#include "operator/controllers/flap_penalty.h"

#include <gtest/gtest.h>

#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class Flaps {
 public:
  void Fail(const std::string& node = "n1") {
    penalty.See(node, true, now, unix_us);
    penalty.See(node, false, now, unix_us);
  }
  void Pass(Clock::Duration span) {
    now += span;
    unix_us += std::chrono::duration_cast<std::chrono::microseconds>(span).count();
    for (const char* node : {"n1", "n2"}) penalty.See(node, false, now, unix_us);
  }
  // How long the node is held from now on, to the second.
  int HeldSeconds(const std::string& node = "n1") const {
    int held = 0;
    while (held < 10'000 && penalty.Holds(node, now + seconds(held))) ++held;
    return held;
  }

  FlapPenalty penalty{FlapPenalty::Options{}};
  Clock::TimePoint now{};
  std::int64_t unix_us = 1'790'000'000'000'000;
};

TEST(FlapPenalty, DoublesFromTheSecondFailureUpToAnHour) {
  Flaps flaps;
  std::vector<int> held;
  for (int i = 0; i < 11; ++i) {
    flaps.Fail();
    held.push_back(flaps.HeldSeconds());
  }
  EXPECT_EQ(held, (std::vector<int>{0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600}));
  EXPECT_EQ(flaps.HeldSeconds("n2"), 0);
}

TEST(FlapPenalty, CalmAfterTheHoldTakesFailuresAway) {
  Flaps flaps;
  for (int i = 0; i < 4; ++i) flaps.Fail();  // held for two minutes
  flaps.Pass(minutes(2));
  EXPECT_EQ(flaps.HeldSeconds(), 0);
  flaps.Pass(minutes(9));
  ASSERT_EQ(flaps.penalty.List().size(), 1U);
  EXPECT_EQ(flaps.penalty.List()[0].failures, 4U);
  flaps.Pass(minutes(1));
  EXPECT_EQ(flaps.penalty.List()[0].failures, 3U);
  flaps.Pass(minutes(20));
  EXPECT_TRUE(flaps.penalty.List().empty()) << "one failure is nothing to tell";
  flaps.Pass(minutes(20));
  flaps.Fail();
  EXPECT_EQ(flaps.HeldSeconds(), 0) << "forgotten";
}

TEST(FlapPenalty, SurvivesInTheStatus) {
  Flaps flaps;
  for (int i = 0; i < 5; ++i) flaps.Fail();  // four minutes
  flaps.Pass(minutes(1));
  const auto stored = flaps.penalty.List();
  ASSERT_EQ(stored.size(), 1U);
  FlapPenalty next{FlapPenalty::Options{}};
  next.Restore(stored, flaps.now, flaps.unix_us);
  EXPECT_EQ(next.List(), stored);
  EXPECT_TRUE(next.Holds("n1", flaps.now + seconds(179)));
  EXPECT_FALSE(next.Holds("n1", flaps.now + seconds(181)));
  // A clock that is hours off cannot hold a node for hours.
  FlapPenalty skewed{FlapPenalty::Options{}};
  skewed.Restore(stored, flaps.now, flaps.unix_us - std::int64_t{86'400'000'000});
  EXPECT_FALSE(skewed.Holds("n1", flaps.now + seconds(3601)));
}

TEST(FlapPenalty, KeepsOnlyNodesThatExist) {
  Flaps flaps;
  for (int i = 0; i < 3; ++i) {
    flaps.Fail("n1");
    flaps.Fail("n2");
  }
  flaps.penalty.Retain([](const std::string& node) { return node == "n2"; });
  EXPECT_EQ(flaps.HeldSeconds("n1"), 0);
  EXPECT_EQ(flaps.HeldSeconds("n2"), 60);
}

// Down for 30 s in every minute with a grace of 20 s: lost each time. Two rounds of moves, then
// none.
TEST(FlapPenalty, NodeThatIsLostAgainAndAgainStopsMovingBytes) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  const auto flap = [&] {
    cluster.agent("n1").up = false;
    cluster.Run(seconds(30));
    cluster.agent("n1").up = true;
    ++cluster.agent("n1").boot_epoch;
    cluster.Run(seconds(30));
  };
  flap();
  EXPECT_GT(SlotsOf(*cluster.map(), "n1"), 4000U) << "the first time is free";
  flap();
  flap();
  const ShardMap before = *cluster.map();
  EXPECT_EQ(SlotsOf(before, "n1"), 0U);
  for (int i = 3; i < 30; ++i) flap();
  EXPECT_EQ(*cluster.map(), before) << "not even an epoch";
  const PoolStatus status = cluster.pool().status;
  ASSERT_EQ(status.unstable_nodes.size(), 1U);
  EXPECT_EQ(status.unstable_nodes[0].node, "n1");
  EXPECT_EQ(status.unstable_nodes[0].failures, 30U);
  EXPECT_NE(cluster.message("Degraded").find("node n1 is back after 30 failures"),
            std::string::npos)
      << cluster.message("Degraded");

  // A new leader goes on with it.
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(minutes(5));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
}

TEST(FlapPenalty, PodMadeAnewDoesNotEvadeIt) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  for (std::uint16_t i = 0; i < 4; ++i) {
    cluster.agent("n1").up = false;
    cluster.DeletePod("agent-n1");
    cluster.Run(seconds(30));
    cluster.MoveAgent("n1", static_cast<std::uint16_t>(31000 + i));
    cluster.Run(seconds(20));
  }
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
  EXPECT_EQ(cluster.pool().status.unstable_nodes.size(), 1U);
  cluster.Run(minutes(3));
  EXPECT_NEAR(static_cast<double>(SlotsOf(*cluster.map(), "n1")), 16384.0 / 3, 20)
      << "its two minutes are over";
}

// Failing within the grace moves nothing and is remembered: the day it is lost it has to wait.
TEST(FlapPenalty, FailuresWithinTheGraceCountButCostNoSlots) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  const ShardMap before = *cluster.map();
  for (int i = 0; i < 6; ++i) {
    cluster.agent("n1").up = false;
    cluster.Run(seconds(10));
    cluster.agent("n1").up = true;
    ++cluster.agent("n1").boot_epoch;
    cluster.Run(seconds(10));
  }
  EXPECT_EQ(*cluster.map(), before);
  cluster.agent("n1").up = false;
  cluster.Run(seconds(30));
  cluster.agent("n1").up = true;
  ++cluster.agent("n1").boot_epoch;
  cluster.Run(minutes(10));
  EXPECT_EQ(SlotsOf(*cluster.map(), "n1"), 0U);
}

}  // namespace
}  // namespace kvfabric
