#pragma once

// DirectoryFeed turns announcements of holders into directory entries: one sequence per (holder,
// boot epoch); a gap makes the holder send a snapshot, and what that does not list is dropped.
//
// Owned by PoolNode; any thread. One lock, held for one announcement's work; look-ups do not take
// it. Rules: (1) a message of an older boot epoch is refused; a newer one drops
// what the old one told; (2) an old sequence number is answered and ignored (a repeat); (3) after
// a gap nothing but a snapshot's first message is taken; (4) during a snapshot the old entries
// still count, at its end those not in it are gone.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "agent/cluster/directory.h"
#include "agent/cluster/peer_messages.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class DirectoryFeed {
 public:
  struct Probe {
    Counter* announced = nullptr;  // entries added or removed
    Counter* resyncs = nullptr;
    Counter* repeats = nullptr;
  };

  // Both borrowed; they outlive this.
  DirectoryFeed(Directory& directory, Probe probe);
  DirectoryFeed(const DirectoryFeed&) = delete;  // two feeds would apply one sequence twice
  DirectoryFeed& operator=(const DirectoryFeed&) = delete;

  Result<AnnounceReply> Apply(NodeIndex holder, std::uint64_t boot_epoch,
                              const AnnounceRequest& request) EXCLUDES(mu_);
  // A session of that run was seen: entries of an older run are dropped now.
  void NoteBoot(NodeIndex holder, std::uint64_t boot_epoch) EXCLUDES(mu_);
  // The node is no member any more: forgets entries and sequence.
  void Forget(NodeIndex holder) EXCLUDES(mu_);
  void Sweep(const std::vector<bool>& owned_slots) EXCLUDES(mu_);
  std::size_t holder_count() const EXCLUDES(mu_);

 private:
  struct Feed {
    std::uint64_t boot_epoch = 0;
    std::uint64_t next_sequence = 1;
    bool synced = true;
    HolderId current = kNoHolder;
    HolderId before_snapshot = kNoHolder;  // set while a snapshot is under way
  };

  Feed* FeedOf(NodeIndex holder, std::uint64_t boot_epoch) REQUIRES(mu_);
  void Drop(Feed& feed) REQUIRES(mu_);
  void BeginSnapshot(NodeIndex holder, Feed& feed) REQUIRES(mu_);

  Directory& directory_;
  const Probe probe_;
  mutable Mutex mu_;
  std::unordered_map<NodeIndex, Feed> feeds_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
