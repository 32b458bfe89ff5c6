#include "agent/cluster/spiller.h"

#include <algorithm>
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
    peers_[node].coldest_touch = coldness.first;
    peers_[node].free_bytes = coldness.second;
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
    } else if (peer.free_bytes >= header.length_bytes) {
      // Among those with room the emptiest: not all to the first.
      coldest.emplace_back(
          kColdestOfAll -
          IdleTime(static_cast<std::int64_t>(
              UINT32_MAX - std::min<std::uint64_t>(peer.free_bytes >> 10U, UINT32_MAX))));
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

bool Spiller::Take(PinnedBlock block) {
  const BlockHeader& header = block.header();
  if (header.spilled_in || header.has_other_holder) return false;
  NodeIndex node = kNoNode;
  {
    MutexLock lock(mu_);
    const std::optional<NodeIndex> chosen = ChoosePeer(header);
    if (!chosen) return false;
    if (queued_bytes_ + header.length_bytes > max_queued_bytes_) {
      environment_.metrics->spill_dropped.Add();
      return false;
    }
    node = *chosen;
    queued_bytes_ += header.length_bytes;
    Peer& peer = peers_[node];
    peer.free_bytes -= std::min(peer.free_bytes, header.length_bytes);
    peer.queue.push_back({std::move(block), environment_.context->clock->Now() + kDeadline});
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
      until = waiting.until;  // of the newest: the others had their chance to go at once
      args.blocks.push_back(std::move(waiting.block));
      peer.queue.pop_front();
    }
  }
  args.pool_uid = pool_uid_;
  args.reason = OfferReason::kSpill;
  args.link = environment_.context->peers->Link(node);
  args.deadline = Deadline::At(until);
  PushCall::Start(*environment_.context->clock, std::move(args),
                  [this, pass, node, bytes](const std::vector<PushOutcome>& outcomes) {
                    OnPushed(node, bytes, outcomes);
                  });
}

void Spiller::OnPushed(NodeIndex node, std::uint64_t bytes,
                       const std::vector<PushOutcome>& outcomes) {
  std::size_t taken = 0;
  std::size_t refused = 0;
  for (const PushOutcome outcome : outcomes) {
    taken += Holds(outcome) ? 1U : 0U;
    refused += outcome == PushOutcome::kRefused ? 1U : 0U;
  }
  environment_.metrics->spilled.Add(static_cast<double>(taken));
  environment_.metrics->spill_dropped.Add(static_cast<double>(outcomes.size() - taken));
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[node];
    peer.busy = false;
    queued_bytes_ -= bytes;
    // It is no colder than we are any more: nothing for it until it says otherwise.
    if (refused > 0) {
      peer.coldest_touch.reset();
      peer.free_bytes = 0;
    }
    if (peer.queue.empty()) return;
  }
  Post(node);
}

}  // namespace kvfabric
