#pragma once

// Drainer moves one pool's blocks out of a node that leaves: hottest first, each to the peer with
// most room, within a byte rate and a deadline; what came in meanwhile in further rounds. What no
// peer takes, or the deadline cuts off, is dropped and counted. The blocks stay readable here.
//
// Owned by PoolNode; any thread; work runs on the background executor and on links.

#include <deque>
#include <map>
#include <unordered_set>
#include <vector>

#include "agent/cluster/byte_rate.h"
#include "agent/cluster/control_plane_port.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_metrics.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/push_call.h"

namespace kvfabric {

class Drainer {
 public:
  struct Environment {
    const NodeContext* context = nullptr;
    const RoutingCell* routing = nullptr;
    Gate* gate = nullptr;
    PoolMetrics* metrics = nullptr;
  };

  Drainer(std::string pool_uid, Environment environment);
  Drainer(const Drainer&) = delete;  // pushes under way point to it
  Drainer& operator=(const Drainer&) = delete;

  void SetEngine(CacheEngine* engine) { engine_ = engine; }
  void SetRate(std::uint64_t bytes_per_s) EXCLUDES(mu_);
  // Starting again while it runs moves the deadline only.
  void Start(Deadline deadline) EXCLUDES(mu_);
  void Stop() EXCLUDES(mu_);
  // Begins what rate and peers allow. Every 50 ms and after each batch, on the background executor.
  void Pump() EXCLUDES(mu_);
  DrainReport Progress() const EXCLUDES(mu_);

 private:
  static constexpr std::size_t kBatchBlocks = 32;
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{8} << 20U;
  static constexpr std::size_t kMaxBatches = 4;
  static constexpr int kMaxFailures = 3;
  static constexpr int kMaxRounds = 3;
  static constexpr std::chrono::milliseconds kLater{300};  // what peers say is news by then
  static constexpr std::chrono::seconds kPushDeadline{10};

  struct Item {
    KeyId id;
    std::uint64_t bytes = 0;
    int failures = 0;
    int rounds = 0;  // how often every peer refused it
    std::vector<NodeIndex> refused_by;
  };
  struct Peer {
    NodeIndex node = kNoNode;
    LinkRef link;
    std::uint64_t free_bytes = 0;
    std::chrono::microseconds coldest_age{0};
  };
  // What a peer's keepalives said last, and what we sent since: a keepalive is up to 250 ms old.
  struct Room {
    std::uint64_t reported_bytes = 0;
    std::uint64_t sent_bytes = 0;
  };
  struct Batch {
    Peer peer;
    std::vector<Item> items;
    std::uint64_t bytes = 0;
  };

  std::vector<Peer> Peers() const;
  void NoteSent(std::vector<Peer>& peers) REQUIRES(mu_);
  // The emptiest peer that did not refuse it; when all are full, the coldest. Null: none.
  static Peer* BestFor(const Item& item, std::vector<Peer>& peers);
  void NextRound() REQUIRES(mu_);
  std::vector<Batch> NextBatches(std::vector<Peer>& peers) REQUIRES(mu_);
  void FillBatch(Batch& batch, std::vector<Peer>& peers) REQUIRES(mu_);
  // No peer takes it now: later once more, or never.
  void Postpone(Item item) REQUIRES(mu_);
  void Drop(const Item& item) REQUIRES(mu_);
  // Done when nothing is left, until more comes in.
  void EndIfDone() REQUIRES(mu_);
  void Send(Batch batch, std::uint64_t run);
  void OnPushed(std::uint64_t run, const std::vector<Item>& items, NodeIndex node,
                const std::vector<PushOutcome>& outcomes) EXCLUDES(mu_);

  const std::string pool_uid_;
  const Environment environment_;
  CacheEngine* engine_ = nullptr;

  mutable Mutex mu_;
  DrainReport report_ GUARDED_BY(mu_);
  Deadline deadline_ GUARDED_BY(mu_);
  std::uint64_t run_ GUARDED_BY(mu_) = 0;  // counts starts: late answers of an earlier one
  std::deque<Item> queue_ GUARDED_BY(mu_);
  std::deque<Item> later_ GUARDED_BY(mu_);
  Clock::TimePoint later_at_ GUARDED_BY(mu_){};
  std::uint64_t puts_seen_ GUARDED_BY(mu_) = 0;                   // by the last round
  std::unordered_set<KeyId, KeyIdHash> settled_ GUARDED_BY(mu_);  // moved or dropped
  std::size_t batches_ GUARDED_BY(mu_) = 0;                       // under way
  std::size_t in_batches_ GUARDED_BY(mu_) = 0;                    // blocks in them
  std::map<NodeIndex, Room> rooms_ GUARDED_BY(mu_);
  ByteRate rate_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
