#include "placement/rebalance_rules.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using enum MemberState;

constexpr LossRules kRules{.suspect_after = seconds(3), .grace = minutes(5)};

MemberState Next(MemberState state, milliseconds silence,
                 milliseconds leadership = std::chrono::hours(1)) {
  return NextMemberState(
      {.state = state, .last_heartbeat_age = silence, .leadership_age = leadership}, kRules);
}

TEST(NextMemberState, SuspectsASilentMemberAndLosesItAfterTheGrace) {
  EXPECT_EQ(Next(kActive, milliseconds(2'999)), kActive);
  EXPECT_EQ(Next(kActive, seconds(3)), kSuspect);
  EXPECT_EQ(Next(kSuspect, minutes(5) - milliseconds(1)), kSuspect);
  EXPECT_EQ(Next(kSuspect, minutes(5)), kLost);
  EXPECT_EQ(Next(kActive, minutes(6)), kLost);
}

TEST(NextMemberState, TakesBackWhoIsHeardAgain) {
  EXPECT_EQ(Next(kSuspect, seconds(1)), kActive);
  EXPECT_EQ(Next(kLost, seconds(1)), kJoining);
  EXPECT_EQ(Next(kLost, minutes(10)), kLost);
  MemberObservation joining{.state = kSuspect, .leadership_age = minutes(60), .joined = false};
  EXPECT_EQ(NextMemberState(joining, kRules), kJoining);
}

TEST(NextMemberState, AccusesNobodyInTheFirstGraceOfALeadership) {
  for (const MemberState state : {kActive, kJoining, kRecovering, kSuspect, kDraining}) {
    EXPECT_EQ(Next(state, minutes(30), minutes(5) - milliseconds(1)), state);
  }
  MemberObservation gone{.state = kActive,
                         .last_heartbeat_age = minutes(30),
                         .leadership_age = minutes(4),
                         .node_gone = true};
  EXPECT_EQ(NextMemberState(gone, kRules), kActive);
  // Silence from before this leadership does not count against anybody.
  EXPECT_EQ(Next(kActive, minutes(30), minutes(5)), kLost);
}

TEST(NextMemberState, TakesNobodyBackWhoWasNotHeard) {
  for (const MemberState state : {kActive, kSuspect, kLost, kDraining}) {
    const MemberObservation fresh{.state = state,
                                  .heard = false,
                                  .last_heartbeat_age = seconds(1),
                                  .leadership_age = seconds(1)};
    EXPECT_EQ(NextMemberState(fresh, kRules), state);
  }
}

TEST(NextMemberState, LosesAMemberWhoseNodeIsGone) {
  MemberObservation gone{.state = kActive, .leadership_age = minutes(5), .node_gone = true};
  EXPECT_EQ(NextMemberState(gone, kRules), kLost);
}

TEST(NextMemberState, KeepsARestartedAgentRecoveringAndADrainedOneDraining) {
  EXPECT_EQ(Next(kRecovering, seconds(1)), kRecovering);
  EXPECT_EQ(Next(kRecovering, seconds(30)), kSuspect);
  EXPECT_EQ(Next(kDraining, seconds(30)), kDraining);
  EXPECT_EQ(Next(kDraining, minutes(5)), kLost);
}

TEST(JoinShare, RisesInEqualSteps) {
  const JoinRules rules{.warmup = seconds(60), .ramp_percent = 10};
  EXPECT_EQ(JoinSharePermille(seconds(0), rules), 100U);
  EXPECT_EQ(JoinSharePermille(milliseconds(5'999), rules), 100U);
  EXPECT_EQ(JoinSharePermille(seconds(6), rules), 200U);
  EXPECT_EQ(JoinSharePermille(seconds(30), rules), 600U);
  EXPECT_EQ(JoinSharePermille(seconds(54), rules), 1000U);
  EXPECT_EQ(JoinSharePermille(seconds(3'600), rules), 1000U);
  EXPECT_EQ(JoinSharePermille(seconds(-5), rules), 100U);  // a clock that was set back
}

TEST(JoinShare, NeverFallsAndEndsFull) {
  for (std::uint32_t percent = 0; percent <= 120; ++percent) {
    const JoinRules rules{.warmup = seconds(7), .ramp_percent = percent};
    std::uint32_t last = 0;
    for (milliseconds at{0}; at <= seconds(8); at += milliseconds(13)) {
      const std::uint32_t share = JoinSharePermille(at, rules);
      ASSERT_GE(share, last);
      ASSERT_LE(share, 1000U);
      last = share;
    }
    ASSERT_EQ(last, 1000U);
  }
  EXPECT_EQ(JoinSharePermille(seconds(0), {.warmup = seconds(0), .ramp_percent = 10}), 1000U);
}

TEST(MisplacedBudget, IsFivePercentLessWhatIsUnderWay) {
  EXPECT_EQ(MisplacedBudget(16384), 819U);
  EXPECT_EQ(MisplacedBudget(131072), 6553U);
  EXPECT_EQ(MisplacedBudget(16384, 800), 19U);
  EXPECT_EQ(MisplacedBudget(16384, 5'000), 0U);
}

}  // namespace
}  // namespace kvfabric
