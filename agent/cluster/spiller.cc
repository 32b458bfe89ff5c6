#include "agent/cluster/spiller.h"

#include <memory>
#include <utility>

#include "agent/policy/spill_rule.h"

namespace kvfabric {

namespace {

Clock::TimePoint TouchOf(const BlockHeader& header) {
  return Clock::TimePoint(std::chrono::microseconds(header.last_touch_us));
}

IdleTime IdleSince(Clock::TimePoint touch, Clock::TimePoint now) {
  return std::chrono::duration_cast<IdleTime>(now - touch);
}

bool TakesSpills(const Member* member) {
  return member != nullptr && member->state != MemberState::kLost &&
         member->state != MemberState::kDraining;
}

}  // namespace

Spiller::Spiller(std::string pool_uid, Environment environment)
    : pool_uid_(std::move(pool_uid)), environment_(environment) {}

void Spiller::SetCapacity(std::uint64_t capacity_bytes) {
  MutexLock lock(mu_);
  max_queued_bytes_ = capacity_bytes / 20;
}

void Spiller::Tick() {
  const Clock::TimePoint now = environment_.context->clock->Now();
  const SharedRouting routing = environment_.routing->Get();
  std::map<NodeIndex, std::pair<Clock::TimePoint, std::uint64_t>> seen;
  for (const auto& [node, link] : environment_.context->peers->UpLinks()) {
    if (routing == nullptr || !TakesSpills(routing->FindMember(node))) continue;
    const KeepaliveState state = link->peer_state();
    if (state.draining) continue;
    const auto pool = std::ranges::find(state.pools, pool_uid_, &PoolColdness::pool_uid);
    if (pool != state.pools.end()) seen[node] = {now - pool->coldest_age, pool->free_bytes};
  }
  Batch expired;  // dies without the lock
  MutexLock lock(mu_);
  for (auto& [node, peer] : peers_) {
    DropExpired(peer, now, expired);
    if (seen.contains(node)) continue;
    peer.coldest_touch.reset();
    peer.reported_bytes = 0;
    peer.stored_bytes = 0;
    peer.refused_until = {};
  }
  for (const auto& [node, coldness] : seen) {
    Peer& peer = peers_[node];
    peer.coldest_touch = coldness.first;
    NoteReport(peer, coldness.second, now);
  }
}

void Spiller::DropExpired(Peer& peer, Clock::TimePoint now, Batch& expired) {
  while (!peer.queue.empty() && now >= peer.queue.front().until) {
    const std::uint64_t bytes = peer.queue.front().block.header().length_bytes;
    queued_bytes_ -= bytes;
    peer.waiting_bytes -= bytes;
    expired.push_back(std::move(peer.queue.front()));
    peer.queue.pop_front();
    environment_.metrics->spill_dropped.Add();
  }
}

// The same figure again is the same keepalive: what was stored since is not in it. After a while it
// is a later one that says the same.
void Spiller::NoteReport(Peer& peer, std::uint64_t free_bytes, Clock::TimePoint now) {
  const bool changed = peer.reported_bytes != free_bytes;
  if (changed || now - peer.stored_at >= kFigureAge) peer.stored_bytes = 0;
  if (changed) peer.refused_until = {};
  peer.reported_bytes = free_bytes;
}

std::optional<NodeIndex> Spiller::ChoosePeer(const BlockHeader& header) {
  const Clock::TimePoint now = environment_.context->clock->Now();
  std::vector<NodeIndex> nodes;
  std::vector<std::optional<IdleTime>> coldest;
  for (const auto& [node, peer] : peers_) {
    nodes.push_back(node);
    if (!peer.coldest_touch || now < peer.refused_until) {
      coldest.emplace_back();
    } else if (peer.free_bytes() >= header.length_bytes) {
      // Among those with room the emptiest: not all to the first.
      coldest.emplace_back(
          kColdestOfAll -
          IdleTime(static_cast<std::int64_t>(
              UINT32_MAX - std::min<std::uint64_t>(peer.free_bytes() >> 10U, UINT32_MAX))));
    } else {
      coldest.emplace_back(IdleSince(*peer.coldest_touch, now));
    }
  }
  // The victim is our coldest leaf: its idle time is our residence time.
  const IdleTime idle = IdleSince(TouchOf(header), now);
  const std::optional<std::size_t> chosen = ChooseSpillPeer(idle, idle, coldest);
  if (!chosen) return std::nullopt;
  return nodes[*chosen];
}

Spiller::Queued Spiller::Enqueue(Waiting& waiting, NodeIndex* node) {
  const BlockHeader& header = waiting.block.header();
  const std::optional<NodeIndex> chosen = ChoosePeer(header);
  if (!chosen) return Queued::kNoPeer;
  const std::uint64_t bytes = header.length_bytes;
  if (queued_bytes_ + bytes > max_queued_bytes_) return Queued::kQueueFull;
  queued_bytes_ += bytes;
  Peer& peer = peers_[*chosen];
  peer.waiting_bytes += bytes;
  peer.queue.push_back(std::move(waiting));
  *node = *chosen;
  return Queued::kYes;
}

bool Spiller::Take(PinnedBlock block) {
  if (block.header().spilled_in || block.header().has_other_holder) return false;
  NodeIndex node = kNoNode;
  Waiting waiting{std::move(block), environment_.context->clock->Now() + kDeadline, false};
  Queued queued = Queued::kNoPeer;
  {
    MutexLock lock(mu_);
    queued = Enqueue(waiting, &node);
  }
  if (queued == Queued::kQueueFull) environment_.metrics->spill_dropped.Add();
  if (queued != Queued::kYes) return false;
  environment_.metrics->spill_offered.Add();
  Post(node);
  return true;
}

// Not from the evictor's thread: by the time it runs more blocks have come for the same message.
void Spiller::Post(NodeIndex node) {
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  // Refused: the blocks are dropped when their time is over.
  static_cast<void>(environment_.context->background->Submit([this, pass, node] { Pump(node); }));
}

void Spiller::Pump(NodeIndex node) {
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  PushCall::Args args;
  auto batch = std::make_shared<Batch>();
  std::uint64_t bytes = 0;
  Clock::TimePoint until{};
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[node];
    if (peer.busy || peer.queue.empty()) return;
    peer.busy = true;
    while (!peer.queue.empty() && args.blocks.size() < kBatchBlocks && bytes < kBatchBytes) {
      Waiting& waiting = peer.queue.front();
      bytes += waiting.block.header().length_bytes;
      until = std::max(until, waiting.until);
      args.blocks.push_back(waiting.block);
      batch->push_back(std::move(waiting));
      peer.queue.pop_front();
    }
  }
  args.pool_uid = pool_uid_;
  args.reason = OfferReason::kSpill;
  args.link = environment_.context->peers->Link(node);
  args.deadline = Deadline::At(until);  // the older ones could have gone at once
  PushCall::Start(*environment_.context->clock, std::move(args),
                  [this, pass, node, batch](const std::vector<PushOutcome>& outcomes) {
                    OnPushed(node, std::move(*batch), outcomes);
                  });
}

void Spiller::NoteAnswers(Peer& peer, const Batch& batch,
                          const std::vector<PushOutcome>& outcomes) {
  const Clock::TimePoint now = environment_.context->clock->Now();
  for (std::size_t at = 0; at < batch.size(); ++at) {
    const std::uint64_t bytes = batch[at].block.header().length_bytes;
    queued_bytes_ -= bytes;
    peer.waiting_bytes -= bytes;
    if (outcomes[at] == PushOutcome::kRefused) peer.refused_until = now + kRefusalPause;
    if (outcomes[at] != PushOutcome::kStored) continue;
    peer.stored_bytes += bytes;
    peer.stored_at = now;
  }
}

void Spiller::OnPushed(NodeIndex node, Batch batch, const std::vector<PushOutcome>& outcomes) {
  std::vector<NodeIndex> pump;
  std::size_t taken = 0;
  std::size_t again = 0;
  {
    MutexLock lock(mu_);
    const Clock::TimePoint now = environment_.context->clock->Now();
    Peer& peer = peers_[node];
    peer.busy = false;
    NoteAnswers(peer, batch, outcomes);
    for (std::size_t at = 0; at < batch.size(); ++at) {
      taken += Holds(outcomes[at]) ? 1U : 0U;
      Waiting& waiting = batch[at];
      if (outcomes[at] != PushOutcome::kRefused || waiting.refused || now >= waiting.until)
        continue;
      NodeIndex other = kNoNode;
      waiting.refused = true;
      if (Enqueue(waiting, &other) != Queued::kYes) continue;
      ++again;
      pump.push_back(other);
    }
    if (!peer.queue.empty()) pump.push_back(node);
  }
  environment_.metrics->spilled.Add(static_cast<double>(taken));
  environment_.metrics->spill_dropped.Add(static_cast<double>(outcomes.size() - taken - again));
  std::ranges::sort(pump);
  pump.erase(std::unique(pump.begin(), pump.end()), pump.end());
  for (const NodeIndex next : pump) Post(next);
}

}  // namespace kvfabric
