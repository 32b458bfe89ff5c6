#pragma once

// Announcer tells the owners of each slot which blocks this node holds: additions and removals in
// sequenced batches, within 50 ms or 256 keys.
//
// Owned by PoolNode, registered as the engine's BlockObserver; any thread. OnCommitted and
// OnRemoved run under an engine shard's lock and only append. All else runs on the background
// executor, one flush at a time; per owner one message is in flight, so that sequences arrive in
// order. Bounds: events_ <= max_events, an owner's backlog <= max_backlog; beyond either the owner
// gets a snapshot instead. A message that failed is sent again under its number; an owner that is
// another run now, or asks for it, gets a snapshot; one that gained slots gets our blocks of those.
// Lock order: flush_mu_ before engine shard locks and events_mu_.

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "agent/cluster/directory_feed.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/peer_set.h"
#include "agent/cluster/pool_routing.h"
#include "agent/engine/cache_engine.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"

namespace kvfabric {

class Announcer final : public BlockObserver {
 public:
  struct Options {
    std::string pool_uid;
    NodeIndex self = kNoNode;
    std::uint64_t boot_epoch = 0;
    std::size_t flush_keys = 256;
    std::size_t max_message_keys = 4096;
    std::size_t max_events = std::size_t{1} << 19U;
    std::size_t max_backlog = std::size_t{1} << 16U;
    std::chrono::milliseconds call_deadline{1000};
  };
  // All borrowed; they outlive this. The engine is set before the first block.
  struct Environment {
    const Clock* clock = nullptr;
    PeerSet* peers = nullptr;
    DirectoryFeed* own_feed = nullptr;
    Executor* background = nullptr;
    Gate* gate = nullptr;
    Counter* messages = nullptr;
    Counter* snapshots = nullptr;
    // The peer answered STALE_EPOCH: it has a newer map.
    std::function<void(NodeIndex peer)> on_stale_epoch;
  };

  Announcer(Options options, Environment environment);
  Announcer(const Announcer&) = delete;  // two would number one sequence
  Announcer& operator=(const Announcer&) = delete;

  void SetEngine(CacheEngine* engine) { engine_ = engine; }

  void OnCommitted(const BlockHeader& header, BlockOrigin origin) override EXCLUDES(events_mu_);
  void OnRemoved(const BlockHeader& header) override EXCLUDES(events_mu_);
  // Somebody asked for a block that is not here: tell all owners that it is not.
  void Correct(const std::vector<KeyId>& ids) EXCLUDES(events_mu_);

  void SetRouting(SharedRouting routing) EXCLUDES(flush_mu_);
  // Posts a flush unless one waits: every 50 ms and when 256 keys wait.
  void Poke();
  // Routes what waits and sends what can be sent. On the background executor, or a test's thread.
  void Flush() EXCLUDES(flush_mu_);
  // True when nothing waits, nothing is in flight and all reachable owners know all.
  bool Idle() EXCLUDES(flush_mu_);

 private:
  static constexpr std::uint32_t kAllOwners = UINT32_MAX;
  struct Event {
    KeyId id;
    std::uint32_t slot = 0;  // kAllOwners: a correction
    bool added = false;
    bool fresh_put = false;
  };
  // What one owner was told. Kept while that node may still run the epoch we spoke to.
  struct Channel {
    std::uint64_t owner_boot_epoch = 0;
    std::uint64_t next_sequence = 1;
    bool owner = true;  // still listed by the map
    bool in_flight = false;
    bool wants_snapshot = true;
    std::vector<SlotIndex> gained;
    std::deque<Event> backlog;
    std::optional<AnnounceRequest> unacknowledged;
    // Of its ids those for which the owner's word that another node has them counts, see OnReply.
    std::unordered_set<KeyId, KeyIdHash> heeded;
    std::vector<DirectoryEntry> snapshot;  // being sent
    std::size_t snapshot_sent = 0;
    bool snapshot_active = false;
  };
  struct Outgoing {
    NodeIndex owner = kNoNode;
    LinkRef link;  // null: this node
    AnnounceRequest request;
  };

  void Append(Event event) EXCLUDES(events_mu_);
  void RouteEvents() REQUIRES(flush_mu_);
  static void ForgetEventsOf(const std::vector<SlotIndex>& gained, Channel& channel);
  void Backlog(Channel& channel, const Event& event) REQUIRES(flush_mu_);
  void ReannounceGained(Channel& channel) REQUIRES(flush_mu_);
  std::optional<Outgoing> NextMessage(NodeIndex owner, Channel& channel) REQUIRES(flush_mu_);
  AnnounceRequest MakeMessage(NodeIndex owner, Channel& channel) REQUIRES(flush_mu_);
  void FillFromSnapshot(Channel& channel, AnnounceRequest& request) REQUIRES(flush_mu_);
  void FillFromBacklog(NodeIndex owner, Channel& channel, AnnounceRequest& request)
      REQUIRES(flush_mu_);
  bool IsFirstOwner(NodeIndex owner, SlotIndex slot) const REQUIRES(flush_mu_);
  static bool HasWork(const Channel& channel);
  void Send(Outgoing outgoing);
  void OnReply(NodeIndex owner, std::uint64_t sequence, Result<AnnounceReply> reply)
      EXCLUDES(flush_mu_);

  const Options options_;
  const Environment environment_;
  CacheEngine* engine_ = nullptr;

  Mutex events_mu_;
  std::vector<Event> events_ GUARDED_BY(events_mu_);
  bool events_lost_ GUARDED_BY(events_mu_) = false;
  bool flush_posted_ GUARDED_BY(events_mu_) = false;

  Mutex flush_mu_;
  SharedRouting routing_ GUARDED_BY(flush_mu_);
  std::map<NodeIndex, Channel> channels_ GUARDED_BY(flush_mu_);
};

}  // namespace kvfabric
