#pragma once

// SelfTest: does this agent do its work? Every second: the arena is there, each pool of threads
// runs a task, and a block of fresh random bytes can be put, read back and verified, in a
// namespace and a memfd of its own. Behind /readyz and the heartbeat's `ready`.
//
// Owned by main; runs on a thread of its own; health() may be called by any thread. A test that
// does not come back within `stale_after` is a failure too.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/engine/cache_engine.h"
#include "agent/service/grpc_control_service.h"
#include "agent/tier/dram_arena.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/mutex.h"

namespace kvfabric {

class SelfTest {
 public:
  struct Options {
    std::chrono::milliseconds interval{1'000};
    std::chrono::milliseconds task_deadline{2'000};
    std::chrono::milliseconds stale_after{5'000};
    std::size_t block_bytes = std::size_t{64} << 10U;
  };
  struct Environment {
    const DramArena* arena = nullptr;
    CacheEngine* engine = nullptr;  // the probe's own
    std::vector<std::pair<std::string, Executor*>> executors;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  // The engine of the probe: 1 MiB, apart from all pools.
  static CacheEngine::Options ProbeEngineOptions();

  SelfTest(Options options, Environment environment);
  ~SelfTest();
  SelfTest(const SelfTest&) = delete;  // owns a thread
  SelfTest& operator=(const SelfTest&) = delete;

  AgentHealth health() const EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);
  Status Probe();
  Status ProbeExecutors();
  Status ProbeBlock();

  const Options options_;
  const Environment environment_;
  const NamespaceRef ns_;
  Gauge& ready_gauge_;
  Counter& failures_;
  std::uint64_t round_ = 0;  // the test's thread

  mutable Mutex mu_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool recovering_ GUARDED_BY(mu_) = true;
  bool tested_ GUARDED_BY(mu_) = false;
  Status last_ GUARDED_BY(mu_);
  Clock::TimePoint finished_ GUARDED_BY(mu_);
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace kvfabric
