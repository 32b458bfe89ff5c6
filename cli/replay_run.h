#pragma once

// ReplayRun: plays the requests of a trace, each at one engine: look up the chain, get the hits and
// compare every byte, put the rest. Some client threads take requests in order of the trace.
//
// Owned by the replay verb. Run() blocks until all is played or the clock is stopped; Snapshot()
// may be called on any thread meanwhile.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cli/replay_clock.h"
#include "cli/replay_engines.h"
#include "cli/replay_tally.h"
#include "common/mutex.h"
#include "trace/trace_reader.h"

namespace kvfabric::cli {

class ReplayRun {
 public:
  struct Options {
    std::uint64_t bytes_per_token = 64;
    std::size_t clients = 4;
    double window_s = 5;  // of wall time
    std::chrono::milliseconds lookup_budget{1000};
    std::chrono::milliseconds get_budget{2000};
    std::chrono::milliseconds put_budget{2000};
  };

  // All borrowed; outlive this.
  ReplayRun(const Trace& trace, ReplayEngines& engines, ReplayClock& clock, Options options);
  ~ReplayRun();
  ReplayRun(const ReplayRun&) = delete;  // threads refer to it
  ReplayRun& operator=(const ReplayRun&) = delete;

  // `watch` is called on this thread some times a second; when it answers false the clock is
  // stopped and requests under way are the last.
  Tally Run(const std::function<bool()>& watch);

  struct Progress {
    std::uint64_t requests = 0;
    HitTokens tokens;
    std::uint64_t bytes = 0;
  };
  Progress progress() const;
  // By how much requests began later than due, in seconds of wall time.
  double late_s_max() const { return late_s_max_; }

 private:
  struct Worker;
  void Work(Worker& worker);
  void Play(Worker& worker, std::uint64_t number, const TraceRequest& request);
  // Blocks [0, n) that were read and are as they were put.
  std::uint32_t GetHits(Worker& worker, ReplayEngine& engine, const Chain& chain,
                        const LookupOutcome& found, std::span<const std::uint64_t> ids);
  void PutRest(Worker& worker, ReplayEngine& engine, const Chain& chain,
               std::span<const std::uint64_t> ids, std::uint32_t first);
  bool CheckBlock(Worker& worker, std::uint64_t id, const BlockView& view);

  const Trace& trace_;
  ReplayEngines& engines_;
  ReplayClock& clock_;
  const Options options_;
  const std::uint64_t block_bytes_;
  const std::uint32_t batch_blocks_;

  std::atomic<std::uint64_t> next_{0};     // number of the next request; orders nothing else
  std::atomic<std::uint64_t> workers_{0};  // still running; release on end, so tallies are read
  double late_s_max_ = 0;                  // after Run
  std::vector<std::unique_ptr<Worker>> crew_;
};

}  // namespace kvfabric::cli
