#include "agent/cluster/replicator.h"

#include <algorithm>
#include <utility>

#include "agent/cluster/replica_targets.h"

namespace kvfabric {

Replicator::Replicator(std::string pool_uid, Environment environment)
    : pool_uid_(std::move(pool_uid)),
      environment_(environment),
      retry_at_(environment.context->clock->Now() + kRetryPeriod) {}

void Replicator::SetLimits(std::uint64_t capacity_bytes, std::uint32_t replicas) {
  MutexLock lock(mu_);
  max_queued_bytes_ = std::max(capacity_bytes / 20, kBatchBytes);
  replicas_ = replicas;
}

void Replicator::Send(Copy copy) {
  const std::uint64_t bytes = copy.block.header().length_bytes;
  auto job = std::make_shared<Job>();
  job->copy = std::move(copy);
  bool taken = !job->copy.targets.empty();
  if (taken) {
    MutexLock lock(mu_);
    taken = queued_bytes_ + bytes <= max_queued_bytes_;
    if (taken) {
      queued_bytes_ += bytes;
      ++jobs_;
      job->unanswered = job->copy.targets.size();
      for (const NodeIndex target : job->copy.targets) lanes_[target].queue.push_back(job);
    }
  }
  if (taken) {
    for (const NodeIndex target : job->copy.targets) Pump(target);
    return;
  }
  const BlockHeader& header = job->copy.block.header();
  environment_.metrics->replicas_failed.Add();
  if (job->copy.owed_if_missed) Owe(header.id, header.slot);
  if (job->copy.done) job->copy.done(0);
}

void Replicator::Pump(NodeIndex target) {
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  std::vector<SharedJob> batch;
  PushCall::Args args;
  {
    MutexLock lock(mu_);
    Lane& lane = lanes_[target];
    if (lane.busy || lane.queue.empty()) return;
    lane.busy = true;
    std::uint64_t bytes = 0;
    while (!lane.queue.empty() && batch.size() < kBatchBlocks && bytes < kBatchBytes) {
      batch.push_back(std::move(lane.queue.front()));
      lane.queue.pop_front();
      bytes += batch.back()->copy.block.header().length_bytes;
      args.blocks.push_back(batch.back()->copy.block);
      args.offer_first = args.offer_first && batch.back()->copy.offer_first;
    }
  }
  args.pool_uid = pool_uid_;
  args.reason = OfferReason::kReplica;
  args.link = pass ? environment_.context->peers->Link(target) : nullptr;
  args.deadline = Deadline::After(*environment_.context->clock, kPushDeadline);
  PushCall::Start(*environment_.context->clock, std::move(args),
                  [this, pass, target, batch](const std::vector<PushOutcome>& outcomes) {
                    OnPushed(target, batch, outcomes);
                  });
}

void Replicator::OnPushed(NodeIndex target, const std::vector<SharedJob>& batch,
                          const std::vector<PushOutcome>& outcomes) {
  std::vector<SharedJob> finished;
  {
    MutexLock lock(mu_);
    lanes_[target].busy = false;
    for (std::size_t at = 0; at < batch.size(); ++at) {
      if (SharedJob job = Settle(batch[at], Holds(outcomes[at])); job != nullptr) {
        finished.push_back(std::move(job));
      }
    }
  }
  for (const SharedJob& job : finished) Finish(job);
  // Through the executor: an unbroken row of failures must not nest.
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  // A job that waits may hold up whoever closed the gate.
  if (!pass || !environment_.context->background->Submit([this, pass, target] { Pump(target); })) {
    GiveUp(target);
  }
}

void Replicator::GiveUp(NodeIndex target) {
  std::vector<SharedJob> finished;
  {
    MutexLock lock(mu_);
    for (const SharedJob& waiting : std::exchange(lanes_[target].queue, {})) {
      if (SharedJob job = Settle(waiting, false); job != nullptr) {
        finished.push_back(std::move(job));
      }
    }
  }
  for (const SharedJob& job : finished) Finish(job);
}

Replicator::SharedJob Replicator::Settle(const SharedJob& job, bool stored) {
  if (stored) ++job->stored;
  if (--job->unanswered > 0) return nullptr;
  queued_bytes_ -= job->copy.block.header().length_bytes;
  --jobs_;
  return job;
}

void Replicator::Finish(const SharedJob& job) {
  const std::size_t missed = job->copy.targets.size() - job->stored;
  environment_.metrics->replicas.Add(static_cast<double>(job->stored));
  const BlockHeader& header = job->copy.block.header();
  if (missed > 0) {
    environment_.metrics->replicas_failed.Add(static_cast<double>(missed));
    if (job->copy.owed_if_missed) Owe(header.id, header.slot);
  }
  if (job->copy.done) job->copy.done(job->stored);
  job->copy.block = PinnedBlock();
}

void Replicator::Owe(const KeyId& id, SlotIndex slot) {
  MutexLock lock(mu_);
  if (owed_.size() < kMaxOwed) owed_.emplace(id, slot);
}

void Replicator::PumpIdle() {
  std::vector<NodeIndex> idle;
  {
    MutexLock lock(mu_);
    for (const auto& [target, lane] : lanes_) {
      if (!lane.busy && !lane.queue.empty()) idle.push_back(target);
    }
  }
  for (const NodeIndex target : idle) Pump(target);
}

void Replicator::RetryOwed() {
  PumpIdle();
  const SharedRouting routing = environment_.routing->Get();
  if (routing == nullptr) return;
  std::vector<std::pair<KeyId, SlotIndex>> due;
  std::uint32_t replicas = 1;
  {
    MutexLock lock(mu_);
    const Clock::TimePoint now = environment_.context->clock->Now();
    if (now < retry_at_) return;
    retry_at_ = now + kRetryPeriod;
    replicas = replicas_;
    for (const auto& [id, slot] : owed_) {
      if (due.size() == kOwedAtOnce) break;
      due.emplace_back(id, slot);
    }
    for (const auto& [id, slot] : due) owed_.erase(id);
  }
  const NodeIndex self = environment_.context->self.node;
  for (const auto& [id, slot] : due) {
    std::optional<PinnedBlock> block = engine_->PinById(id);
    if (!block) continue;
    Copy copy;
    copy.targets =
        ReplicaTargets(*routing, *environment_.context->peers, slot, {&self, 1}, replicas);
    copy.block = std::move(*block);
    copy.offer_first = true;
    if (copy.targets.empty()) {
      // No owner is up that could take one: it stays owed, unless no copy is wanted any more.
      if (replicas > 1) Owe(id, slot);
      continue;
    }
    Send(std::move(copy));
  }
}

std::size_t Replicator::waiting() const {
  MutexLock lock(mu_);
  return owed_.size() + jobs_;
}

}  // namespace kvfabric
