#include "common/timer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "tests/fakes/fake_clock.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

TEST(Timer, RunsInOrderOfTime) {
  Timer timer(Clock::System());
  std::vector<int> order;  // the timer thread alone writes; the latch publishes
  std::latch done(2);
  timer.After(milliseconds(20), [&] {
    order.push_back(2);
    done.count_down();
  });
  timer.After(milliseconds(1), [&] {
    order.push_back(1);
    done.count_down();
  });
  done.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Timer, CancelledTasksDoNotRun) {
  FakeClock clock;
  std::atomic<int> ran = 0;
  std::latch done(1);
  Timer timer(clock);
  const Timer::Id cancelled = timer.After(milliseconds(5), [&] { ++ran; });
  EXPECT_TRUE(timer.Cancel(cancelled));
  EXPECT_FALSE(timer.Cancel(cancelled));
  timer.After(milliseconds(10), [&] { done.count_down(); });
  clock.Advance(milliseconds(50));
  done.wait();
  EXPECT_EQ(ran, 0);
}

TEST(Timer, PeriodicTaskMayCancelItself) {
  Timer timer(Clock::System());
  std::atomic<Timer::Id> id = 0;
  std::atomic<int> ran = 0;
  std::latch ready(1);
  std::latch done(1);
  id = timer.Every(milliseconds(1), [&] {
    ready.wait();
    if (++ran == 3) {
      timer.Cancel(id);
      done.count_down();
    }
  });
  ready.count_down();
  done.wait();
  timer.CancelAndWait(id);
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace kvfabric
