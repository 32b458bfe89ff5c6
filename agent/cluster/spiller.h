#pragma once

// Spiller hands leaves that the engine must evict to the peer whose coldest leaf is colder than
// ours by a margin, so that the nodes are one pool under any routing.
//
// Owned by PoolNode, registered as the engine's SpillTarget. Take runs on the evictor's thread and
// only queues; offers and pushes run on links. Bounds: bytes queued and under way <= a twentieth of
// the tier; each block has 200 ms, then it is dropped and counted. One batch per peer is under way.
// What peers said of their coldest leaves is read every 50 ms, not per block. A peer that refuses
// is full after all: it gets nothing until it says otherwise or 50 ms have passed, and the block
// goes to another, once.

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/gate.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_metrics.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/push_call.h"
#include "agent/engine/cache_engine.h"

namespace kvfabric {

class Spiller final : public SpillTarget {
 public:
  struct Environment {
    const NodeContext* context = nullptr;
    const RoutingCell* routing = nullptr;
    Gate* gate = nullptr;
    PoolMetrics* metrics = nullptr;
  };

  Spiller(std::string pool_uid, Environment environment);
  Spiller(const Spiller&) = delete;  // pushes under way point to it
  Spiller& operator=(const Spiller&) = delete;

  void SetCapacity(std::uint64_t capacity_bytes) EXCLUDES(mu_);
  bool Take(PinnedBlock block) override EXCLUDES(mu_);
  // Reads what peers say of themselves; drops what waited too long. Every 50 ms.
  void Tick() EXCLUDES(mu_);

 private:
  static constexpr std::chrono::milliseconds kDeadline{200};
  static constexpr std::chrono::milliseconds kRefusalPause{50};  // longer loses what it has by then
  static constexpr std::chrono::seconds kFigureAge{1};  // some keepalives later the same is news
  static constexpr std::size_t kBatchBlocks = 64;
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20U;

  struct Waiting {
    PinnedBlock block;
    Clock::TimePoint until{};
    bool refused = false;  // by one peer
  };
  using Batch = std::vector<Waiting>;
  struct Peer {
    std::optional<Clock::TimePoint> coldest_touch;  // of its coldest leaf; unset: it gets nothing
    std::uint64_t reported_bytes = 0;               // free below its watermark, as it said last
    std::uint64_t waiting_bytes = 0;                // queued and under way
    std::uint64_t stored_bytes = 0;                 // since it said so
    Clock::TimePoint stored_at{};
    Clock::TimePoint refused_until{};
    std::uint64_t free_bytes() const {
      return reported_bytes - std::min(reported_bytes, waiting_bytes + stored_bytes);
    }
    std::deque<Waiting> queue;
    bool busy = false;
  };

  enum class Queued : std::uint8_t { kYes, kNoPeer, kQueueFull };

  void DropExpired(Peer& peer, Clock::TimePoint now, Batch& expired) REQUIRES(mu_);
  static void NoteReport(Peer& peer, std::uint64_t free_bytes, Clock::TimePoint now);
  std::optional<NodeIndex> ChoosePeer(const BlockHeader& header) REQUIRES(mu_);
  // Takes `waiting` only when it says yes: what is dropped must die without the lock.
  Queued Enqueue(Waiting& waiting, NodeIndex* node) REQUIRES(mu_);
  void Post(NodeIndex node);
  void Pump(NodeIndex node) EXCLUDES(mu_);
  void OnPushed(NodeIndex node, Batch batch, const std::vector<PushOutcome>& outcomes)
      EXCLUDES(mu_);
  // Takes what the answers say of the room at `peer` into account.
  void NoteAnswers(Peer& peer, const Batch& batch, const std::vector<PushOutcome>& outcomes)
      REQUIRES(mu_);

  const std::string pool_uid_;
  const Environment environment_;

  Mutex mu_;
  std::uint64_t max_queued_bytes_ GUARDED_BY(mu_) = 0;
  std::uint64_t queued_bytes_ GUARDED_BY(mu_) = 0;  // and under way
  std::map<NodeIndex, Peer> peers_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
