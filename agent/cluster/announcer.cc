#include "agent/cluster/announcer.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

Announcer::Announcer(Options options, Environment environment)
    : options_(std::move(options)), environment_(std::move(environment)) {}

void Announcer::Append(Event event) {
  bool poke = false;
  {
    MutexLock lock(events_mu_);
    if (events_.size() >= options_.max_events) {
      events_lost_ = true;
      return;
    }
    events_.push_back(event);
    poke = events_.size() % options_.flush_keys == 0 && !flush_posted_;
  }
  if (poke) Poke();
}

void Announcer::OnCommitted(const BlockHeader& header, BlockOrigin origin) {
  Append({header.id, header.slot, true, origin == BlockOrigin::kPut});
}

void Announcer::OnRemoved(const BlockHeader& header) {
  Append({header.id, header.slot, false, false});
}

void Announcer::Correct(const std::vector<KeyId>& ids) {
  for (const KeyId& id : ids) Append({id, kAllOwners, false, false});
}

void Announcer::Poke() {
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  {
    MutexLock lock(events_mu_);
    if (std::exchange(flush_posted_, true)) return;
  }
  const bool taken = environment_.background->Submit([this, pass] {
    {
      MutexLock lock(events_mu_);
      flush_posted_ = false;
    }
    Flush();
  });
  if (taken) return;
  MutexLock lock(events_mu_);  // the next tick tries again
  flush_posted_ = false;
}

void Announcer::SetRouting(SharedRouting routing) {
  {
    MutexLock lock(flush_mu_);
    const SharedRouting before = std::exchange(routing_, std::move(routing));
    for (auto& [node, channel] : channels_) channel.owner = false;
    for (const auto& [node, gained] : routing_->OwnersAndGains(before.get())) {
      const auto [found, fresh] = channels_.try_emplace(node);
      Channel& channel = found->second;
      channel.owner = true;
      if (fresh || gained.empty()) continue;
      ForgetEventsOf(gained, channel);
      channel.gained.insert(channel.gained.end(), gained.begin(), gained.end());
    }
    for (auto& [node, channel] : channels_) {
      if (channel.owner) continue;
      channel.backlog.clear();
      channel.gained.clear();
      channel.snapshot_active = false;
      channel.wants_snapshot = true;
    }
  }
  Poke();
}

// An owner that has a slot back: what waits for it is from before it lost the slot, and what undid
// it since was told to others.
void Announcer::ForgetEventsOf(const std::vector<SlotIndex>& gained, Channel& channel) {
  const std::unordered_set<SlotIndex> slots(gained.begin(), gained.end());
  std::erase_if(channel.backlog, [&](const Event& event) {
    return event.slot != kAllOwners && slots.contains(event.slot);
  });
  if (!channel.unacknowledged) return;
  const std::vector<DirectoryEntry>& added = channel.unacknowledged->added;
  if (std::none_of(added.begin(), added.end(),
                   [&](const DirectoryEntry& entry) { return slots.contains(entry.slot); })) {
    return;
  }
  channel.snapshot_active = false;  // the message cannot be taken back; a snapshot puts it right
  channel.wants_snapshot = true;
}

void Announcer::Backlog(Channel& channel, const Event& event) {
  if (channel.wants_snapshot && !channel.snapshot_active) return;  // the snapshot will tell
  if (channel.backlog.size() >= options_.max_backlog) {
    channel.backlog.clear();
    channel.snapshot_active = false;
    channel.wants_snapshot = true;
    return;
  }
  channel.backlog.push_back(event);
}

void Announcer::RouteEvents() {
  std::vector<Event> events;
  bool lost = false;
  {
    MutexLock lock(events_mu_);
    events.swap(events_);
    lost = std::exchange(events_lost_, false);
  }
  if (routing_ == nullptr) return;  // the first map brings snapshots
  for (const Event& event : events) {
    if (event.slot == kAllOwners) {
      // It came in since: that event may stand before the correction, which would undo it.
      if (engine_->ContainsKept(event.id)) continue;
      for (auto& [node, channel] : channels_) Backlog(channel, event);
      continue;
    }
    if (event.slot >= routing_->map().slot_count) continue;
    for (const MemberIndex member : routing_->map().Owners(event.slot)) {
      if (member == kNoOwner) break;
      const auto found = channels_.find(routing_->NodeOf(member));
      if (found != channels_.end()) Backlog(found->second, event);
    }
  }
  if (!lost) return;
  for (auto& [node, channel] : channels_) {
    channel.backlog.clear();
    channel.snapshot_active = false;
    channel.wants_snapshot = true;
  }
}

void Announcer::ReannounceGained(Channel& channel) {
  if (channel.gained.empty()) return;
  const std::vector<SlotIndex> gained = std::exchange(channel.gained, {});
  if (channel.wants_snapshot && !channel.snapshot_active) return;
  for (const BlockHeader& header : engine_->Snapshot(gained)) {
    Backlog(channel, {header.id, header.slot, true, false});
  }
}

bool Announcer::HasWork(const Channel& channel) {
  return channel.unacknowledged.has_value() || channel.wants_snapshot || channel.snapshot_active ||
         !channel.backlog.empty() || !channel.gained.empty();
}

void Announcer::FillFromSnapshot(Channel& channel, AnnounceRequest& request) {
  const std::size_t left = channel.snapshot.size() - channel.snapshot_sent;
  const std::size_t count = std::min(left, options_.max_message_keys);
  const auto begin = channel.snapshot.begin() + static_cast<std::ptrdiff_t>(channel.snapshot_sent);
  request.snapshot_begin = channel.snapshot_sent == 0;
  request.added.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  channel.snapshot_sent += count;
  if (count < left) return;
  request.snapshot_end = true;
  channel.snapshot_active = false;
  channel.snapshot = {};
}

bool Announcer::IsFirstOwner(NodeIndex owner, SlotIndex slot) const {
  const MemberIndex first = routing_->map().Owners(slot)[0];
  return first != kNoOwner && routing_->NodeOf(first) == owner;
}

void Announcer::FillFromBacklog(NodeIndex owner, Channel& channel, AnnounceRequest& request) {
  const std::size_t count = std::min(channel.backlog.size(), options_.max_message_keys);
  const auto end = channel.backlog.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Event> events(channel.backlog.begin(), end);
  channel.backlog.erase(channel.backlog.begin(), end);
  // Per id the last event tells the truth; a message has no order inside.
  std::ranges::stable_sort(events, {}, &Event::id);
  for (std::size_t at = 0; at < events.size(); ++at) {
    const Event& event = events[at];
    if (at + 1 < events.size() && events[at + 1].id == event.id) continue;
    if (event.added) {
      request.added.push_back({event.id, event.slot});
      // One owner's word: two that hear of two holders in different order would mark both.
      if (event.fresh_put && routing_->map().replicas == 1 && IsFirstOwner(owner, event.slot)) {
        channel.heeded.insert(event.id);
      }
    } else {
      request.removed.push_back(event.id);
    }
  }
}

AnnounceRequest Announcer::MakeMessage(NodeIndex owner, Channel& channel) {
  AnnounceRequest request;
  request.pool_uid = options_.pool_uid;
  request.sequence = channel.next_sequence++;
  if (channel.wants_snapshot && !channel.snapshot_active) {
    // Events from before this point are in the snapshot, those from now on go to the backlog.
    channel.wants_snapshot = false;
    channel.backlog.clear();
    channel.gained.clear();
    channel.snapshot.clear();
    channel.heeded.clear();
    channel.snapshot_sent = 0;
    channel.snapshot_active = true;
    const std::vector<SlotIndex> slots = routing_->SlotsOf(owner);
    if (!slots.empty()) {
      for (const BlockHeader& header : engine_->Snapshot(slots)) {
        channel.snapshot.push_back({header.id, header.slot});
      }
    }
    environment_.snapshots->Add();
  }
  if (channel.snapshot_active) {
    FillFromSnapshot(channel, request);
  } else {
    FillFromBacklog(owner, channel, request);
  }
  return request;
}

std::optional<Announcer::Outgoing> Announcer::NextMessage(NodeIndex owner, Channel& channel) {
  if (routing_ == nullptr || !channel.owner || channel.in_flight) return std::nullopt;
  Outgoing outgoing;
  outgoing.owner = owner;
  std::uint64_t owner_boot_epoch = options_.boot_epoch;
  if (owner != options_.self) {
    outgoing.link = environment_.peers->Link(owner);
    if (outgoing.link == nullptr) return std::nullopt;
    owner_boot_epoch = outgoing.link->identity().boot_epoch;
    if (owner_boot_epoch == 0) return std::nullopt;
  }
  if (owner_boot_epoch != channel.owner_boot_epoch) {
    channel = Channel{};
    channel.owner_boot_epoch = owner_boot_epoch;
  }
  ReannounceGained(channel);
  if (!HasWork(channel)) return std::nullopt;
  if (!channel.unacknowledged) channel.unacknowledged = MakeMessage(owner, channel);
  channel.in_flight = true;
  outgoing.request = *channel.unacknowledged;
  outgoing.request.map_epoch = routing_->epoch();
  return outgoing;
}

void Announcer::Flush() {
  std::vector<Outgoing> messages;
  {
    MutexLock lock(flush_mu_);
    RouteEvents();
    for (auto& [owner, channel] : channels_) {
      std::optional<Outgoing> message = NextMessage(owner, channel);
      if (message) messages.push_back(std::move(*message));
    }
  }
  for (Outgoing& message : messages) Send(std::move(message));
}

void Announcer::Send(Outgoing outgoing) {
  environment_.messages->Add();
  const NodeIndex owner = outgoing.owner;
  const std::uint64_t sequence = outgoing.request.sequence;
  if (outgoing.link == nullptr) {
    OnReply(owner, sequence,
            environment_.own_feed->Apply(owner, options_.boot_epoch, outgoing.request));
    return;
  }
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  outgoing.link->Announce(std::move(outgoing.request),
                          Deadline::After(*environment_.clock, options_.call_deadline),
                          [this, pass, owner, sequence](Result<AnnounceReply> reply) {
                            // Off the link's thread: the next message may need a snapshot. A full
                            // executor costs a tick: OnReply then runs here, and sends nothing.
                            auto shared = std::make_shared<Result<AnnounceReply>>(std::move(reply));
                            auto task = [this, pass, owner, sequence, shared] {
                              OnReply(owner, sequence, std::move(*shared));
                            };
                            if (!environment_.background->Submit(task)) task();
                          });
}

void Announcer::OnReply(NodeIndex owner, std::uint64_t sequence, Result<AnnounceReply> reply) {
  bool more = false;
  std::unordered_set<KeyId, KeyIdHash> heeded;
  {
    MutexLock lock(flush_mu_);
    const auto found = channels_.find(owner);
    if (found == channels_.end()) return;
    Channel& channel = found->second;
    if (!channel.unacknowledged || channel.unacknowledged->sequence != sequence) return;
    channel.in_flight = false;
    if (reply.ok()) {
      channel.unacknowledged.reset();
      heeded.swap(channel.heeded);
      if (reply->resync) {
        channel.snapshot_active = false;
        channel.wants_snapshot = true;
      }
      more = HasWork(channel);
    }
  }
  if (!reply.ok()) {
    // Sent again under the same number at the next tick, when the peer is up.
    if (reply.status().code() == StatusCode::kAborted) environment_.on_stale_epoch(owner);
    return;
  }
  // Exactly one holder of a block should take its copy for the one to keep; a mark at all of them
  // would have it evicted everywhere before colder blocks. Copies that were fetched or pushed are
  // marked as they come; so what is left to learn is that somebody put the same block elsewhere.
  // Not what came by spill or drain, whose giver the owner may still list; nor, with replicas, what
  // our own copies made known.
  for (const KeyId& id : reply->has_other_holder) {
    if (heeded.contains(id)) engine_->SetHasOtherHolder(id, true);
  }
  if (more) Poke();
}

bool Announcer::Idle() {
  MutexLock lock(flush_mu_);
  {
    MutexLock events(events_mu_);
    if (!events_.empty() || events_lost_) return false;
  }
  for (auto& [owner, channel] : channels_) {
    if (!channel.owner) continue;
    if (owner != options_.self && !environment_.peers->Up(owner)) continue;
    if (channel.in_flight || HasWork(channel)) return false;
  }
  return true;
}

}  // namespace kvfabric
