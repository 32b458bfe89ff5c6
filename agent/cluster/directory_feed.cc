#include "agent/cluster/directory_feed.h"

#include <string>

namespace kvfabric {

DirectoryFeed::DirectoryFeed(Directory& directory, Probe probe)
    : directory_(directory), probe_(probe) {}

void DirectoryFeed::Drop(Feed& feed) {
  directory_.RetireHolder(feed.current);
  directory_.RetireHolder(feed.before_snapshot);
  feed.current = kNoHolder;
  feed.before_snapshot = kNoHolder;
}

DirectoryFeed::Feed* DirectoryFeed::FeedOf(NodeIndex holder, std::uint64_t boot_epoch) {
  Feed& feed = feeds_[holder];
  if (boot_epoch < feed.boot_epoch) return nullptr;
  if (boot_epoch > feed.boot_epoch) {
    Drop(feed);
    feed = Feed{};
    feed.boot_epoch = boot_epoch;
  }
  if (feed.current == kNoHolder) feed.current = directory_.OpenHolder(holder);
  return &feed;
}

void DirectoryFeed::BeginSnapshot(NodeIndex holder, Feed& feed) {
  // A snapshot that never ended is superseded: what it told stays, as the older layer.
  directory_.RetireHolder(feed.before_snapshot);
  feed.before_snapshot = feed.current;
  feed.current = directory_.OpenHolder(holder);
  if (feed.current == kNoHolder) {
    // No incarnation is free: sweeping frees the retired ones, the one just retired among them.
    directory_.RetireHolder(feed.before_snapshot);
    feed.before_snapshot = kNoHolder;
    directory_.Sweep({});
    feed.current = directory_.OpenHolder(holder);
  }
  feed.synced = true;
}

Result<AnnounceReply> DirectoryFeed::Apply(NodeIndex holder, std::uint64_t boot_epoch,
                                           const AnnounceRequest& request) {
  if (holder == kNoNode) return ResourceExhausted("announce: no number is left for the node");
  MutexLock lock(mu_);
  Feed* feed = FeedOf(holder, boot_epoch);
  if (feed == nullptr) {
    return FailedPrecondition("announce: of boot epoch " + std::to_string(boot_epoch) +
                              ", a later run of this agent is known");
  }
  AnnounceReply reply;
  if (request.sequence < feed->next_sequence) {
    probe_.repeats->Add();
    return reply;
  }
  if (request.snapshot_begin) {
    BeginSnapshot(holder, *feed);
  } else if (!feed->synced || request.sequence != feed->next_sequence) {
    if (feed->synced) probe_.resyncs->Add();
    feed->synced = false;
    reply.resync = true;
    return reply;
  }
  feed->next_sequence = request.sequence + 1;
  // Removals first: within one message an id is in one list only.
  for (const KeyId& id : request.removed) directory_.Remove(id, holder);
  for (const DirectoryEntry& entry : request.added) {
    if (directory_.Add(entry.id, entry.slot, feed->current)) {
      reply.has_other_holder.push_back(entry.id);
    }
  }
  probe_.announced->Add(static_cast<double>(request.added.size() + request.removed.size()));
  if (request.snapshot_end) {
    directory_.RetireHolder(feed->before_snapshot);
    feed->before_snapshot = kNoHolder;
  }
  return reply;
}

void DirectoryFeed::NoteBoot(NodeIndex holder, std::uint64_t boot_epoch) {
  MutexLock lock(mu_);
  const auto found = feeds_.find(holder);
  if (found == feeds_.end() || boot_epoch <= found->second.boot_epoch) return;
  Drop(found->second);
  found->second = Feed{};
  found->second.boot_epoch = boot_epoch;
}

void DirectoryFeed::Forget(NodeIndex holder) {
  MutexLock lock(mu_);
  const auto found = feeds_.find(holder);
  if (found == feeds_.end()) return;
  Drop(found->second);
  // The boot epoch stays, so that late messages of older runs still lose; the sequence does not:
  // whatever comes next is a gap and brings a snapshot.
  const std::uint64_t boot_epoch = found->second.boot_epoch;
  found->second = Feed{};
  found->second.boot_epoch = boot_epoch;
  found->second.synced = false;
}

void DirectoryFeed::Sweep(const std::vector<bool>& owned_slots) {
  MutexLock lock(mu_);
  directory_.Sweep(owned_slots);
}

std::size_t DirectoryFeed::holder_count() const {
  MutexLock lock(mu_);
  return feeds_.size();
}

}  // namespace kvfabric
