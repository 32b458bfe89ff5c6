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
  std::vector<Waiting> expired;
  MutexLock lock(mu_);
  for (auto& [node, peer] : peers_) {
    if (!seen.contains(node)) peer.coldest_touch.reset();
    while (!peer.queue.empty() && now >= peer.queue.front().until) {
      queued_bytes_ -= peer.queue.front().block.header().length_bytes;
      expired.push_back(std::move(peer.queue.front()));
      peer.queue.pop_front();
      environment_.metrics->spill_dropped.Add();
    }
  }
  for (const auto& [node, coldness] : seen) {
    Peer& peer = peers_[node];
    peer.coldest_touch = coldness.first;
    // The same figure again is the same keepalive: what was sent since is not in it.
    if (peer.reported_bytes != coldness.second) peer.sent_bytes = 0;
    peer.reported_bytes = coldness.second;
  }
}

std::optional<NodeIndex> Spiller::ChoosePeer(const BlockHeader& header) {
  const Clock::TimePoint now = environment_.context->clock->Now();
  std::vector<NodeIndex> nodes;
  std::vector<std::optional<IdleTime>> coldest;
  for (const auto& [node, peer] : peers_) {
    nodes.push_back(node);
    if (!peer.coldest_touch) {
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

bool Spiller::Enqueue(Waiting waiting, NodeIndex* node) {
  const BlockHeader& header = waiting.block.header();
  const std::optional<NodeIndex> chosen = ChoosePeer(header);
  if (!chosen) return false;
  const std::uint64_t bytes = header.length_bytes;
  if (queued_bytes_ + bytes > max_queued_bytes_) {
    environment_.metrics->spill_dropped.Add();
    return false;
  }
  queued_bytes_ += bytes;
  Peer& peer = peers_[*chosen];
  peer.sent_bytes += bytes;
  peer.queue.push_back(std::move(waiting));
  *node = *chosen;
  return true;
}

bool Spiller::Take(PinnedBlock block) {
  if (block.header().spilled_in || block.header().has_other_holder) return false;
  NodeIndex node = kNoNode;
  {
    MutexLock lock(mu_);
    const Clock::TimePoint until = environment_.context->clock->Now() + kDeadline;
    if (!Enqueue({std::move(block), until, false}, &node)) return false;
  }
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
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[node];
    if (peer.busy || peer.queue.empty()) return;
    peer.busy = true;
    while (!peer.queue.empty() && args.blocks.size() < kBatchBlocks && bytes < kBatchBytes) {
      Waiting& waiting = peer.queue.front();
      bytes += waiting.block.header().length_bytes;
      args.blocks.push_back(waiting.block);
      batch->push_back(std::move(waiting));
      peer.queue.pop_front();
    }
  }
  args.pool_uid = pool_uid_;
  args.reason = OfferReason::kSpill;
  args.link = environment_.context->peers->Link(node);
  args.deadline = Deadline::At(batch->back().until);  // the older ones could have gone at once
  PushCall::Start(*environment_.context->clock, std::move(args),
                  [this, pass, node, batch](const std::vector<PushOutcome>& outcomes) {
                    OnPushed(node, std::move(*batch), outcomes);
                  });
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
    for (const Waiting& waiting : batch) queued_bytes_ -= waiting.block.header().length_bytes;
    const bool full = std::ranges::find(outcomes, PushOutcome::kRefused) != outcomes.end();
    if (full) {
      peer.coldest_touch.reset();
      peer.sent_bytes = peer.reported_bytes;
    }
    for (std::size_t at = 0; at < batch.size(); ++at) {
      taken += Holds(outcomes[at]) ? 1U : 0U;
      Waiting& waiting = batch[at];
      if (outcomes[at] != PushOutcome::kRefused || waiting.refused || now >= waiting.until)
        continue;
      NodeIndex other = kNoNode;
      waiting.refused = true;
      if (!Enqueue(std::move(waiting), &other)) continue;
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
