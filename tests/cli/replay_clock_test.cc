#include "cli/replay_clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/fakes/fake_clock.h"

namespace kvfabric::cli {
namespace {

TEST(ReplayClock, TellsTraceTimeBySpeed) {
  FakeClock clock;
  ReplayClock replay(clock, 60);
  clock.Advance(std::chrono::seconds(2));
  EXPECT_DOUBLE_EQ(replay.WallSeconds(), 2);
  EXPECT_DOUBLE_EQ(replay.TraceSeconds(), 120);
  bool go = false;
  EXPECT_NEAR(replay.Begin(60, &go), 1, 1e-6);  // due a second ago
  EXPECT_TRUE(go);
  EXPECT_TRUE(replay.WaitFor(120));
}

TEST(ReplayClock, ClosedLoopGoesByTheRequestLastBegun) {
  ReplayClock replay(Clock::System(), 0);
  bool go = false;
  replay.Begin(100, &go);
  replay.Begin(40, &go);  // another client is behind: time does not go back
  EXPECT_TRUE(go);
  EXPECT_DOUBLE_EQ(replay.TraceSeconds(), 100);
  EXPECT_TRUE(replay.WaitFor(100));
}

TEST(ReplayClock, AWaiterWakesWhenItsTimeIsReached) {
  ReplayClock replay(Clock::System(), 0);
  bool reached = false;
  std::thread waiter([&] { reached = replay.WaitFor(10); });
  bool go = false;
  replay.Begin(10, &go);
  waiter.join();
  EXPECT_TRUE(reached);
}

// The last request is begun, then the replay ends: an event at its time was due all the same.
TEST(ReplayClock, WhatWasReachedBeforeTheStopIsReached) {
  ReplayClock replay(Clock::System(), 0);
  bool go = false;
  replay.Begin(10, &go);
  replay.Stop();
  EXPECT_TRUE(replay.WaitFor(10));
  EXPECT_FALSE(replay.WaitFor(10.1));
}

TEST(ReplayClock, StopEndsEveryWaitNowAndLater) {
  ReplayClock open(Clock::System(), 1);
  ReplayClock closed(Clock::System(), 0);
  bool open_reached = true, closed_reached = true;
  std::thread first([&] { open_reached = open.WaitFor(1e6); });
  std::thread second([&] { closed_reached = closed.WaitFor(1e6); });
  open.Stop();
  closed.Stop();
  first.join();
  second.join();
  EXPECT_FALSE(open_reached);
  EXPECT_FALSE(closed_reached);
  bool go = true;
  open.Begin(1e6, &go);
  EXPECT_FALSE(go);
  EXPECT_TRUE(open.stopped());
}

}  // namespace
}  // namespace kvfabric::cli
