#pragma once

// ReplicaRepair makes copies anew after a member was lost: the first live owner of
// each slot copies the blocks whose entry named that member and that some node still has, to the
// owners that lack them, within the pool's byte rate. Blocks short of copies by eviction are left
// alone. A copy that fails is tried again a second later, kMaxAttempts times in all; one that needs
// a peer which is down waits for it.
//
// Owned by PoolNode; any thread; work runs on the background executor and on links. One batch is
// under way at a time. Bound: at most kMaxJobs entries wait; more are counted as lost to repair.

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "agent/cluster/byte_rate.h"
#include "agent/cluster/directory.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_metrics.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/replicator.h"

namespace kvfabric {

class PoolNode;

class ReplicaRepair {
 public:
  struct Environment {
    PoolNode* pool = nullptr;  // whose part this is
    Replicator* replicator = nullptr;
    PoolMetrics* metrics = nullptr;
    Gate* gate = nullptr;
  };

  explicit ReplicaRepair(Environment environment) : environment_(environment) {}
  ReplicaRepair(const ReplicaRepair&) = delete;  // batches under way point to it
  ReplicaRepair& operator=(const ReplicaRepair&) = delete;

  void SetLimits(std::uint64_t bytes_per_s, std::uint32_t replicas, bool paused) EXCLUDES(mu_);
  // Notes what `lost` held, before the directory forgets it.
  void OnLost(const PoolRouting& routing, NodeIndex lost) EXCLUDES(mu_);
  // Begins the next batch when the last is done and the rate allows. On the background executor.
  void Pump() EXCLUDES(mu_);
  // A peer is up: what waited for one may go on.
  void OnPeerUp() EXCLUDES(mu_);
  std::size_t waiting() const EXCLUDES(mu_);

 private:
  static constexpr std::size_t kMaxJobs = std::size_t{1} << 20U;
  static constexpr std::size_t kBatchBlocks = 16;  // they pass through transient memory
  static constexpr std::chrono::seconds kCallDeadline{5};
  static constexpr std::chrono::seconds kRetryAfter{1};
  static constexpr std::chrono::seconds kRecheckAfter{5};  // what waits for a peer
  static constexpr int kMaxAttempts = 5;

  struct Job {
    KeyId id;
    SlotIndex slot = 0;
    int attempts = 0;
  };
  struct Wanted {
    Job job;
    std::vector<NodeIndex> holders;  // that are up
    std::vector<NodeIndex> targets;
    bool needs_peer = false;  // the only holder, or an owner that should hold it, is down
  };
  using Batch = std::vector<Wanted>;
  // Blocks of one batch to fetch from one holder.
  struct Source;

  // What of a job still has to be done: no targets when nothing can be done now.
  Wanted Plan(const PoolRouting& routing, const Job& job) EXCLUDES(mu_);
  std::vector<Job> NextJobs() EXCLUDES(mu_);
  void CopyFromHere(Wanted wanted);
  void CopyFrom(NodeIndex holder, Batch batch);
  void OnLeased(const std::shared_ptr<Source>& source, const LeaseReply& reply);
  void OnFetched(const std::shared_ptr<Source>& source, Result<FetchResult> result);
  Reservation PlaceFor(const Source& source, BlockHeader header);
  void Spread(PinnedBlock block, const Wanted& wanted);
  void Retry(Job job) EXCLUDES(mu_);
  void WaitForPeer(const Job& job) EXCLUDES(mu_);
  void EndPart() EXCLUDES(mu_);

  const Environment environment_;
  mutable Mutex mu_;
  std::deque<Job> jobs_ GUARDED_BY(mu_);
  std::deque<Job> retries_ GUARDED_BY(mu_);
  Clock::TimePoint retry_at_ GUARDED_BY(mu_){};
  std::deque<Job> waiting_for_peer_ GUARDED_BY(mu_);
  Clock::TimePoint recheck_at_ GUARDED_BY(mu_){};
  std::size_t parts_ GUARDED_BY(mu_) = 0;  // of the batch under way
  ByteRate rate_ GUARDED_BY(mu_);
  std::uint32_t replicas_ GUARDED_BY(mu_) = 1;
  bool paused_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
