#pragma once

// Locator finds the holders of blocks: it asks the owners of their slots in parallel, one message
// per owner, and answers peers that ask this node as an owner.
//
// Owned by PoolNode; any thread; completions run once, on any thread, by the deadline. Per key the
// first owner that is up is asked (our own directory without a message); if it fails, the next
// one. An owner that answers STALE_EPOCH makes us take its map and ask again, once. As an owner
// without an entry we ask the previous one for 10 s after an epoch, and another owner for 10 s
// after our own start: one hop. Positive answers for runs at depths 0-2 are kept for 1 s
// at most kMaxCached of them.

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "agent/cluster/directory.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/peer_set.h"
#include "agent/cluster/pool_routing.h"
#include "common/clock.h"
#include "common/metrics.h"

namespace kvfabric {

class Locator {
 public:
  using Found = std::vector<Directory::Holders>;  // one per key, this node not excluded
  using Done = std::function<void(Found)>;

  struct Environment {
    const Clock* clock = nullptr;
    const Directory* directory = nullptr;
    const RoutingCell* routing = nullptr;
    const PeerSet* peers = nullptr;
    const NodeNames* names = nullptr;
    Gate* gate = nullptr;
    Counter* asked = nullptr;      // messages to owners
    Counter* handovers = nullptr;  // keys asked of a previous owner
    // Takes `peer`'s map if it is higher, then calls back (also when it failed), by the deadline.
    std::function<void(NodeIndex peer, Deadline, std::function<void()>)> refresh_map;
  };

  Locator(std::string pool_uid, Environment environment);
  Locator(const Locator&) = delete;  // calls under way point to it
  Locator& operator=(const Locator&) = delete;

  // The first `heads` keys belong to runs at depths 0-2.
  void Locate(std::vector<DirectoryEntry> keys, std::size_t heads, Deadline deadline, Done done);
  // ABORTED (stale epoch) when the sender's map is older than ours.
  void Answer(LocateRequest request, Deadline deadline, Completion<LocateReply> done);
  // A holder refused a lease: what is remembered of that block is doubtful.
  void Doubt(const KeyId& id) EXCLUDES(cache_mu_);

 private:
  class Call;
  static constexpr std::size_t kMaxCached = 4096;
  static constexpr std::chrono::seconds kCachedFor{1};

  struct Cached {
    Directory::Holders holders;
    Clock::TimePoint until{};
  };

  // Whom to ask, one hop, about a slot of ours whose entries we may not have yet; kNoNode: nobody.
  NodeIndex HopFor(const PoolRouting& routing, SlotIndex slot) const;
  bool FindCached(const KeyId& id, Directory::Holders* holders) EXCLUDES(cache_mu_);
  void Remember(const KeyId& id, const Directory::Holders& holders) EXCLUDES(cache_mu_);

  const std::string pool_uid_;
  const Environment environment_;
  const Clock::TimePoint started_at_;

  Mutex cache_mu_;
  std::unordered_map<KeyId, Cached, KeyIdHash> cache_ GUARDED_BY(cache_mu_);
};

}  // namespace kvfabric
