#include "common/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace kvfabric {
namespace {

TEST(WorkerPool, RunsAllThatItAccepted) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool("test", 3, 1000);
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(pool.Submit([&] { ++ran; }));
  }
  EXPECT_EQ(ran, 500);
}

TEST(WorkerPool, RefusesBeyondItsBound) {
  std::latch started(1);
  std::latch hold(1);
  WorkerPool pool("test", 1, 2);
  ASSERT_TRUE(pool.Submit([&] {
    started.count_down();
    hold.wait();
  }));
  started.wait();
  EXPECT_TRUE(pool.Submit([] {}));
  EXPECT_TRUE(pool.Submit([] {}));
  EXPECT_FALSE(pool.Submit([] {}));
  EXPECT_EQ(pool.queued(), 2U);
  hold.count_down();
}

TEST(WorkerPool, RefusesAfterShutdown) {
  WorkerPool pool("test", 1, 2);
  pool.Shutdown();
  EXPECT_FALSE(pool.Submit([] {}));
}

}  // namespace
}  // namespace kvfabric
