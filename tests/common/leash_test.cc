#include "common/leash.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/fakes/manual_executor.h"

namespace kvfabric {
namespace {

TEST(Leash, RunsTasksWhileItHoldsAndNoneAfterwards) {
  ManualExecutor executor;
  int ran = 0;
  {
    Leash leash;
    ASSERT_TRUE(executor.Submit(leash.Bind([&ran] { ++ran; })));
    ASSERT_TRUE(executor.Submit(leash.Bind([&ran] { ++ran; })));
    executor.RunOne();
  }
  executor.RunAll();
  EXPECT_EQ(ran, 1);
}

TEST(Leash, WaitsForTheTaskThatRuns) {
  Leash leash;
  std::atomic<bool> started{false};
  std::atomic<bool> go_on{false};
  std::atomic<bool> ended{false};
  std::thread runner(leash.Bind([&] {
    started = true;
    started.notify_all();
    go_on.wait(false);
    ended = true;
  }));
  started.wait(false);
  std::thread releaser([&] {
    go_on = true;
    go_on.notify_all();
  });
  leash.Cut();
  EXPECT_TRUE(ended);
  runner.join();
  releaser.join();
}

}  // namespace
}  // namespace kvfabric
