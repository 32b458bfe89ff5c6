#pragma once

// Replicator sends copies of blocks to other nodes: of fresh puts, and of blocks that lost one.
//
// Owned by PoolNode; any thread. One push per target is under way, what comes meanwhile goes with
// the next (at most kBatchBlocks, kBatchBytes). Bound: bytes queued and under way <= a twentieth of
// the tier (at least one batch); beyond it, and when a target fails, the block is owed: its id is
// remembered (at most kMaxOwed, then counted only) and tried again every 5 s while it is here.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "agent/cluster/gate.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_metrics.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/push_call.h"

namespace kvfabric {

class Replicator {
 public:
  struct Environment {
    const NodeContext* context = nullptr;
    const RoutingCell* routing = nullptr;
    Gate* gate = nullptr;
    PoolMetrics* metrics = nullptr;
  };
  struct Copy {
    PinnedBlock block;
    std::vector<NodeIndex> targets;
    bool offer_first = false;  // the target may have it
    // False: a copy that went missing is not sought again (the block is only passing here).
    bool owed_if_missed = true;
    // How many targets hold it now. Once; may be empty.
    std::function<void(std::size_t stored)> done;
  };

  Replicator(std::string pool_uid, Environment environment);
  Replicator(const Replicator&) = delete;  // pushes under way point to it
  Replicator& operator=(const Replicator&) = delete;

  void SetEngine(CacheEngine* engine) { engine_ = engine; }
  void SetLimits(std::uint64_t capacity_bytes, std::uint32_t replicas) EXCLUDES(mu_);

  void Send(Copy copy) EXCLUDES(mu_);
  // A block here that should have more copies than it has.
  void Owe(const KeyId& id, SlotIndex slot) EXCLUDES(mu_);
  // Tries what is owed, if it is time. On the background executor.
  void RetryOwed() EXCLUDES(mu_);
  // Blocks that wait for a copy.
  std::size_t waiting() const EXCLUDES(mu_);

 private:
  static constexpr std::size_t kBatchBlocks = 64;
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20U;
  static constexpr std::size_t kMaxOwed = std::size_t{1} << 16U;
  static constexpr std::size_t kOwedAtOnce = 256;
  static constexpr std::chrono::seconds kRetryPeriod{5};
  static constexpr std::chrono::seconds kPushDeadline{5};

  // One block on its way to its targets.
  struct Job {
    Copy copy;
    std::size_t unanswered = 0;
    std::size_t stored = 0;
  };
  using SharedJob = std::shared_ptr<Job>;
  struct Lane {
    std::deque<SharedJob> queue;
    bool busy = false;
  };

  void Pump(NodeIndex target) EXCLUDES(mu_);
  void PumpIdle() EXCLUDES(mu_);
  void OnPushed(NodeIndex target, const std::vector<SharedJob>& batch,
                const std::vector<PushOutcome>& outcomes) EXCLUDES(mu_);
  // Answers everything that waits for `target`: nobody will send it.
  void GiveUp(NodeIndex target) EXCLUDES(mu_);
  // One target of a job answered; returns the job when it was the last.
  SharedJob Settle(const SharedJob& job, bool stored) REQUIRES(mu_);
  void Finish(const SharedJob& job) EXCLUDES(mu_);

  const std::string pool_uid_;
  const Environment environment_;
  CacheEngine* engine_ = nullptr;

  mutable Mutex mu_;
  std::uint64_t max_queued_bytes_ GUARDED_BY(mu_) = kBatchBytes;
  std::uint32_t replicas_ GUARDED_BY(mu_) = 1;
  std::uint64_t queued_bytes_ GUARDED_BY(mu_) = 0;
  std::size_t jobs_ GUARDED_BY(mu_) = 0;
  std::map<NodeIndex, Lane> lanes_ GUARDED_BY(mu_);
  std::unordered_map<KeyId, SlotIndex, KeyIdHash> owed_ GUARDED_BY(mu_);
  Clock::TimePoint retry_at_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
