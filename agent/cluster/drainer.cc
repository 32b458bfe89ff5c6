#include "agent/cluster/drainer.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

Drainer::Drainer(std::string pool_uid, Environment environment)
    : pool_uid_(std::move(pool_uid)), environment_(environment) {}

void Drainer::SetRate(std::uint64_t bytes_per_s) {
  MutexLock lock(mu_);
  rate_.SetLimit(bytes_per_s);
}

void Drainer::Start(Deadline deadline) {
  {
    MutexLock lock(mu_);
    deadline_ = deadline;
    if (report_.active && !report_.done) return;
    report_ = DrainReport{};
    report_.active = true;
    ++run_;
    batches_ = 0;
    in_batches_ = 0;
    queue_.clear();
    later_.clear();
    settled_.clear();
    NextRound();
    EndIfDone();
  }
}

void Drainer::Stop() {
  MutexLock lock(mu_);
  report_.active = false;
  ++run_;
  batches_ = 0;
  in_batches_ = 0;
  queue_.clear();
  later_.clear();
  settled_.clear();
}

// Everything here that was not settled yet, hottest first.
void Drainer::NextRound() {
  puts_seen_ = engine_->Stats().puts;
  std::vector<BlockHeader> blocks = engine_->Snapshot({});
  std::ranges::stable_sort(blocks, std::greater<>(), &BlockHeader::last_touch_us);
  for (const BlockHeader& block : blocks) {
    if (!settled_.contains(block.id)) queue_.push_back({block.id, block.length_bytes, 0, 0, {}});
  }
}

void Drainer::EndIfDone() {
  if (!report_.active || !queue_.empty() || !later_.empty() || batches_ > 0) return;
  if (report_.done && engine_->Stats().puts == puts_seen_) return;
  NextRound();
  report_.done = queue_.empty();
}

void Drainer::Postpone(Item item) {
  if (++item.rounds >= kMaxRounds) {
    Drop(item);
    return;
  }
  item.refused_by.clear();
  later_at_ = environment_.context->clock->Now() + kLater;
  later_.push_back(std::move(item));
}

void Drainer::Drop(const Item& item) {
  settled_.insert(item.id);
  ++report_.dropped_blocks;
  environment_.metrics->drain_dropped.Add();
}

std::vector<Drainer::Peer> Drainer::Peers() const {
  std::vector<Peer> peers;
  const SharedRouting routing = environment_.routing->Get();
  if (routing == nullptr) return peers;
  for (const auto& [node, link] : environment_.context->peers->UpLinks()) {
    const Member* member = routing->FindMember(node);
    if (member == nullptr || member->state == MemberState::kLost ||
        member->state == MemberState::kDraining) {
      continue;
    }
    const KeepaliveState state = link->peer_state();
    if (state.draining) continue;
    const auto pool = std::ranges::find(state.pools, pool_uid_, &PoolColdness::pool_uid);
    if (pool == state.pools.end()) continue;
    peers.push_back({node, link, pool->free_bytes, pool->coldest_age});
  }
  return peers;
}

void Drainer::NoteSent(std::vector<Peer>& peers) {
  for (Peer& peer : peers) {
    Room& room = rooms_[peer.node];
    if (room.reported_bytes != peer.free_bytes) room = {peer.free_bytes, 0};
    peer.free_bytes -= std::min(peer.free_bytes, room.sent_bytes);
  }
}

Drainer::Peer* Drainer::BestFor(const Item& item, std::vector<Peer>& peers) {
  Peer* best = nullptr;
  for (Peer& peer : peers) {
    if (std::ranges::find(item.refused_by, peer.node) != item.refused_by.end()) continue;
    const bool better = best == nullptr || std::pair(peer.free_bytes, peer.coldest_age) >
                                               std::pair(best->free_bytes, best->coldest_age);
    if (better) best = &peer;
  }
  return best;
}

void Drainer::FillBatch(Batch& batch, std::vector<Peer>& peers) {
  Peer* target = nullptr;
  while (!queue_.empty() && batch.items.size() < kBatchBlocks && batch.bytes < kBatchBytes) {
    Item& item = queue_.front();
    Peer* best = BestFor(item, peers);
    if (best == nullptr) {
      Postpone(std::move(item));
      queue_.pop_front();
      continue;
    }
    if (target == nullptr) target = best;
    // The peer of this batch will do while it has room; else the next batch has another.
    const bool refused = std::ranges::find(item.refused_by, target->node) != item.refused_by.end();
    if (refused || (best != target && target->free_bytes < item.bytes)) break;
    target->free_bytes -= std::min(target->free_bytes, item.bytes);
    rooms_[target->node].sent_bytes += item.bytes;
    batch.bytes += item.bytes;
    batch.items.push_back(std::move(item));
    queue_.pop_front();
  }
  if (target != nullptr) batch.peer = *target;
}

std::vector<Drainer::Batch> Drainer::NextBatches(std::vector<Peer>& peers) {
  std::vector<Batch> batches;
  const Clock::TimePoint now = environment_.context->clock->Now();
  while (batches_ < kMaxBatches && !queue_.empty() && rate_.MayStart(now)) {
    Batch batch;
    FillBatch(batch, peers);
    if (batch.items.empty()) break;
    rate_.Spend(batch.bytes, now);
    ++batches_;
    in_batches_ += batch.items.size();
    batches.push_back(std::move(batch));
  }
  return batches;
}

void Drainer::Pump() {
  std::vector<Peer> peers = Peers();
  std::vector<Batch> batches;
  std::uint64_t run = 0;
  {
    MutexLock lock(mu_);
    if (!report_.active) return;
    run = run_;
    if (deadline_.Passed(*environment_.context->clock)) {
      for (const Item& item : queue_) Drop(item);
      for (const Item& item : later_) Drop(item);
      queue_.clear();
      later_.clear();
      report_.done = report_.done || batches_ == 0;
    } else if (!peers.empty()) {  // none up: until the deadline one may come
      if (queue_.empty() && environment_.context->clock->Now() >= later_at_) queue_.swap(later_);
      NoteSent(peers);
      batches = NextBatches(peers);
      EndIfDone();
    }
  }
  for (Batch& batch : batches) Send(std::move(batch), run);
}

void Drainer::Send(Batch batch, std::uint64_t run) {
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  PushCall::Args args;
  std::vector<Item> items;
  std::size_t gone = 0;
  for (Item& item : batch.items) {
    std::optional<PinnedBlock> block = engine_->PinById(item.id);
    if (!block) {
      ++gone;  // evicted or deleted since: nothing to move
      continue;
    }
    args.blocks.push_back(std::move(*block));
    items.push_back(std::move(item));
  }
  {
    MutexLock lock(mu_);
    if (run == run_) in_batches_ -= gone;
  }
  args.pool_uid = pool_uid_;
  args.reason = OfferReason::kDrain;
  args.link = pass ? batch.peer.link : nullptr;
  args.deadline = Deadline::After(*environment_.context->clock, kPushDeadline);
  const NodeIndex node = batch.peer.node;
  PushCall::Start(*environment_.context->clock, std::move(args),
                  [this, pass, run, node, items](const std::vector<PushOutcome>& outcomes) {
                    OnPushed(run, items, node, outcomes);
                  });
}

void Drainer::OnPushed(std::uint64_t run, const std::vector<Item>& items, NodeIndex node,
                       const std::vector<PushOutcome>& outcomes) {
  {
    MutexLock lock(mu_);
    if (run != run_) return;
    --batches_;
    in_batches_ -= items.size();
    for (std::size_t at = 0; at < items.size(); ++at) {
      if (Holds(outcomes[at])) {
        settled_.insert(items[at].id);
        ++report_.moved_blocks;
        report_.moved_bytes += outcomes[at] == PushOutcome::kStored ? items[at].bytes : 0;
        environment_.metrics->drain_moved.Add();
        continue;
      }
      Item again = items[at];
      const bool refused = outcomes[at] == PushOutcome::kRefused;
      if (refused || ++again.failures % kMaxFailures == 0) again.refused_by.push_back(node);
      queue_.push_front(std::move(again));
    }
  }
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  // Refused: the tick goes on.
  static_cast<void>(environment_.context->background->Submit([this, pass] { Pump(); }));
}

DrainReport Drainer::Progress() const {
  MutexLock lock(mu_);
  DrainReport report = report_;
  report.remaining_blocks = queue_.size() + later_.size() + in_batches_;
  return report;
}

}  // namespace kvfabric
