#include "agent/service/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>

#include "tests/fakes/manual_executor.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct Machine {
  MetricsRegistry metrics;
  WorkerPool background{"background", 1, 64};
  std::unique_ptr<DramArena> arena;
  std::unique_ptr<CacheEngine> engine;

  explicit Machine(Executor* prefault) {
    DramArena::Options options;
    options.bytes = std::uint64_t{16} << 20U;
    options.background = prefault;
    arena = std::move(*DramArena::Create(options));
    CacheEngine::Environment environment;
    environment.arena = arena.get();
    environment.clock = &Clock::System();
    environment.background = &background;
    environment.metrics = &metrics;
    engine = std::move(*CacheEngine::Create(SelfTest::ProbeEngineOptions(), environment));
  }
  std::unique_ptr<SelfTest> Test(SelfTest::Options options,
                                 std::vector<std::pair<std::string, Executor*>> executors) {
    SelfTest::Environment environment;
    environment.arena = arena.get();
    environment.engine = engine.get();
    environment.executors = std::move(executors);
    environment.clock = &Clock::System();
    environment.metrics = &metrics;
    return std::make_unique<SelfTest>(options, std::move(environment));
  }
};

bool WaitFor(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10) * TimeScale();
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return condition();
}

TEST(SelfTest, PassesAgainAndAgainWithinItsOwnMegabyte) {
  WorkerPool prefault("prefault", 1, 1024);
  Machine machine(&prefault);
  const auto test = machine.Test({.interval = milliseconds(1)}, {});
  ASSERT_TRUE(WaitFor([&] { return test->health().ready; }));
  const Counter& puts = machine.metrics.GetCounter("kvfabric_agent_self_test_failures_total", "");
  // Many more rounds than blocks fit: each one gives its memory back.
  std::uint64_t rounds = 0;
  EXPECT_TRUE(WaitFor([&] {
    rounds = machine.engine->Stats().puts;
    return rounds > 100;
  }));
  EXPECT_EQ(puts.Value(), 0.0);
  EXPECT_LE(machine.engine->Stats().used_bytes, kProbeMemfdBytes);
}

TEST(SelfTest, IsRecoveringUntilMemoryIsPrefaulted) {
  ManualExecutor prefault;
  Machine machine(&prefault);
  const auto test = machine.Test({}, {});
  EXPECT_TRUE(test->health().recovering);
  EXPECT_FALSE(test->health().ready);
  EXPECT_THAT(test->health().not_ready_reason, HasSubstr("prefaulted"));
  prefault.RunAll();
  EXPECT_TRUE(WaitFor([&] { return test->health().ready; }));
  EXPECT_FALSE(test->health().recovering);
}

TEST(SelfTest, NamesThreadsThatRunNoTasks) {
  WorkerPool prefault("prefault", 1, 1024);
  WorkerPool stuck("stuck", 1, 64);
  std::latch gate(1);
  Machine machine(&prefault);
  const auto test = machine.Test({.interval = milliseconds(1), .task_deadline = milliseconds(50)},
                                 {{"stuck", &stuck}});
  ASSERT_TRUE(WaitFor([&] { return test->health().ready; }));
  ASSERT_TRUE(stuck.Submit([&] { gate.wait(); }));
  EXPECT_TRUE(WaitFor([&] { return !test->health().ready; }));
  EXPECT_THAT(test->health().not_ready_reason, HasSubstr("threads stuck"));
  gate.count_down();
  EXPECT_TRUE(WaitFor([&] { return test->health().ready; }));
}

TEST(SelfTest, SaysSoWhenItHangsItself) {
  WorkerPool prefault("prefault", 1, 1024);
  WorkerPool stuck("stuck", 1, 64);
  std::latch gate(1);
  Machine machine(&prefault);
  const auto test = machine.Test({.interval = milliseconds(1),
                                  .task_deadline = std::chrono::seconds(60),
                                  .stale_after = milliseconds(100)},
                                 {{"stuck", &stuck}});
  ASSERT_TRUE(WaitFor([&] { return test->health().ready; }));
  ASSERT_TRUE(stuck.Submit([&] { gate.wait(); }));
  EXPECT_TRUE(WaitFor([&] { return !test->health().ready; }));
  EXPECT_THAT(test->health().not_ready_reason, HasSubstr("hangs"));
  gate.count_down();
}

}  // namespace
}  // namespace kvfabric
