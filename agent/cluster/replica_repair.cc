#include "agent/cluster/replica_repair.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "agent/cluster/incoming_block.h"
#include "agent/cluster/pool_node.h"
#include "agent/cluster/replica_targets.h"
#include "common/log.h"

namespace kvfabric {

struct ReplicaRepair::Source {
  NodeIndex holder = kNoNode;
  LinkRef link;
  std::shared_ptr<Gate::Pass> pass;
  std::uint64_t lease_id = 0;
  Batch batch;
  std::vector<std::size_t> leased;  // indices into batch
};

void ReplicaRepair::SetLimits(std::uint64_t bytes_per_s, std::uint32_t replicas, bool paused) {
  MutexLock lock(mu_);
  rate_.SetLimit(bytes_per_s);
  replicas_ = replicas;
  paused_ = paused;
}

void ReplicaRepair::OnLost(const PoolRouting& routing, NodeIndex lost) {
  PoolNode& pool = *environment_.pool;
  {
    MutexLock lock(mu_);
    if (replicas_ < 2) return;
  }
  std::vector<Directory::Listing> found = pool.directory().EntriesOf(lost, kMaxJobs);
  const PeerSet& peers = *pool.context().peers;
  std::erase_if(found, [&](const Directory::Listing& entry) {
    if (entry.slot >= routing.map().slot_count) return true;
    for (const NodeIndex owner : routing.OwnersOf(entry.slot)) {
      if (owner == routing.self()) return false;
      if (peers.Up(owner)) return true;  // that one does it
    }
    return true;
  });
  LogInfo("a member is lost: its blocks are copied from the other holders",
          {{"pool", pool.name()},
           {"member", pool.context().names->Name(lost)},
           {"blocks", found.size()}});
  MutexLock lock(mu_);
  const std::size_t waiting = jobs_.size() + retries_.size() + waiting_for_peer_.size();
  const std::size_t room = kMaxJobs - std::min(kMaxJobs, waiting);
  if (found.size() > room) {
    environment_.metrics->replicas_failed.Add(static_cast<double>(found.size() - room));
    found.resize(room);
  }
  for (const Directory::Listing& entry : found) jobs_.push_back({entry.id, entry.slot, 0});
}

std::size_t ReplicaRepair::waiting() const {
  MutexLock lock(mu_);
  return jobs_.size() + retries_.size() + waiting_for_peer_.size();
}

ReplicaRepair::Wanted ReplicaRepair::Plan(const PoolRouting& routing, const Job& job) {
  PoolNode& pool = *environment_.pool;
  const PeerSet& peers = *pool.context().peers;
  std::uint32_t replicas = 1;
  {
    MutexLock lock(mu_);
    replicas = replicas_;
  }
  Wanted wanted;
  wanted.job = job;
  const Directory::Holders known = pool.directory().Find(job.id);
  const auto up = [&](NodeIndex node) { return node == routing.self() || peers.Up(node); };
  std::ranges::copy_if(known.span(), std::back_inserter(wanted.holders), up);
  if (wanted.holders.empty()) {
    wanted.needs_peer = !known.span().empty();
    return wanted;
  }
  wanted.targets = ReplicaTargets(routing, peers, job.slot, wanted.holders, replicas);
  if (wanted.holders.size() + wanted.targets.size() >= replicas) return wanted;
  const std::vector<NodeIndex> owners = routing.OwnersOf(job.slot);
  wanted.needs_peer = !std::ranges::all_of(owners, up);
  return wanted;
}

std::vector<ReplicaRepair::Job> ReplicaRepair::NextJobs() {
  std::vector<Job> jobs;
  MutexLock lock(mu_);
  const Clock::TimePoint now = environment_.pool->context().clock->Now();
  if (parts_ > 0 || paused_ || !rate_.MayStart(now)) return jobs;
  if (now >= retry_at_) {
    jobs_.insert(jobs_.end(), retries_.begin(), retries_.end());
    retries_.clear();
  }
  if (now >= recheck_at_) {
    jobs_.insert(jobs_.end(), waiting_for_peer_.begin(), waiting_for_peer_.end());
    waiting_for_peer_.clear();
  }
  while (!jobs_.empty() && jobs.size() < kBatchBlocks) {
    jobs.push_back(jobs_.front());
    jobs_.pop_front();
  }
  parts_ = jobs.empty() ? 0 : 1;
  return jobs;
}

void ReplicaRepair::Retry(Job job) {
  if (++job.attempts >= kMaxAttempts) {
    environment_.metrics->replicas_failed.Add();
    return;
  }
  MutexLock lock(mu_);
  retry_at_ = environment_.pool->context().clock->Now() + kRetryAfter;
  retries_.push_back(job);
}

void ReplicaRepair::WaitForPeer(const Job& job) {
  MutexLock lock(mu_);
  // Not only until one is heard of: it may come up between the look and this.
  if (waiting_for_peer_.empty()) {
    recheck_at_ = environment_.pool->context().clock->Now() + kRecheckAfter;
  }
  waiting_for_peer_.push_back(job);
}

void ReplicaRepair::OnPeerUp() {
  MutexLock lock(mu_);
  recheck_at_ = {};
}

void ReplicaRepair::Pump() {
  PoolNode& pool = *environment_.pool;
  const SharedRouting routing = pool.routing();
  if (routing == nullptr) return;
  const std::vector<Job> jobs = NextJobs();
  if (jobs.empty()) return;
  std::map<NodeIndex, Batch> sources;
  for (const Job& job : jobs) {
    Wanted wanted = Plan(*routing, job);
    if (wanted.needs_peer) WaitForPeer(job);
    if (wanted.targets.empty()) continue;
    const bool here = std::ranges::find(wanted.holders, routing->self()) != wanted.holders.end();
    if (here) {
      CopyFromHere(std::move(wanted));
    } else {
      const NodeIndex holder = wanted.holders.front();
      sources[holder].push_back(std::move(wanted));
    }
  }
  {
    MutexLock lock(mu_);
    parts_ += sources.size();
  }
  for (auto& [holder, batch] : sources) CopyFrom(holder, std::move(batch));
  EndPart();
}

void ReplicaRepair::EndPart() {
  {
    MutexLock lock(mu_);
    if (--parts_ > 0 || jobs_.empty()) return;
  }
  std::shared_ptr<Gate::Pass> pass = environment_.gate->EnterShared();
  if (!pass) return;
  // Refused: the pool's tick goes on.
  static_cast<void>(environment_.pool->context().background->Submit([this, pass] { Pump(); }));
}

void ReplicaRepair::CopyFromHere(Wanted wanted) {
  std::optional<PinnedBlock> block = environment_.pool->engine().PinById(wanted.job.id);
  if (block) {
    Spread(std::move(*block), wanted);
  } else {
    Retry(wanted.job);  // it went a moment ago; another holder may have it
  }
}

void ReplicaRepair::CopyFrom(NodeIndex holder, Batch batch) {
  PoolNode& pool = *environment_.pool;
  auto source = std::make_shared<Source>();
  source->holder = holder;
  source->link = pool.context().peers->Link(holder);
  source->pass = environment_.gate->EnterShared();
  source->batch = std::move(batch);
  if (source->link == nullptr || !source->pass) {
    for (const Wanted& wanted : source->batch) Retry(wanted.job);
    EndPart();
    return;
  }
  LeaseRequest request;
  request.pool_uid = pool.uid();
  for (const Wanted& wanted : source->batch) request.ids.push_back(wanted.job.id);
  source->link->Lease(std::move(request), Deadline::After(*pool.context().clock, kCallDeadline),
                      [this, source](const Result<LeaseReply>& reply) {
                        if (!reply.ok() || reply->granted.size() != source->batch.size()) {
                          for (const Wanted& wanted : source->batch) Retry(wanted.job);
                          EndPart();
                          return;
                        }
                        OnLeased(source, *reply);
                      });
}

void ReplicaRepair::OnLeased(const std::shared_ptr<Source>& source, const LeaseReply& reply) {
  PoolNode& pool = *environment_.pool;
  source->lease_id = reply.lease_id;
  std::vector<FetchItem> items;
  std::uint64_t bytes = 0;
  for (std::size_t at = 0; at < source->batch.size(); ++at) {
    if (!reply.granted[at]) {
      Retry(source->batch[at].job);  // another holder may have it
      continue;
    }
    source->leased.push_back(at);
    items.push_back({source->batch[at].job.id});
    if (at < reply.lengths.size()) bytes += reply.lengths[at];
  }
  if (items.empty()) {
    EndPart();
    return;
  }
  {
    MutexLock lock(mu_);
    rate_.Spend(bytes, pool.context().clock->Now());
  }
  source->link->Fetch(
      pool.uid(), source->lease_id, std::move(items),
      [this, source](const BlockHeader& header) { return PlaceFor(*source, header); },
      Deadline::After(*pool.context().clock, kCallDeadline),
      [this, source](Result<FetchResult> result) { OnFetched(source, std::move(result)); });
}

Reservation ReplicaRepair::PlaceFor(const Source& source, BlockHeader header) {
  PoolNode& pool = *environment_.pool;
  const auto wanted = std::ranges::find_if(
      source.batch, [&header](const Wanted& w) { return w.job.id == header.id; });
  if (wanted == source.batch.end()) return Reservation();
  Result<BlockHeader> accepted = AcceptHeader(pool, std::move(header));
  if (!accepted.ok()) return Reservation();
  accepted->has_other_holder = true;
  // One of the copies may be ours to keep; else it only passes through.
  const NodeIndex self = pool.context().self.node;
  const bool ours = std::ranges::find(wanted->targets, self) != wanted->targets.end();
  Result<Reservation> place = pool.engine().Reserve(
      std::move(*accepted), ours ? BlockOrigin::kReplica : BlockOrigin::kTransient);
  return place.ok() ? std::move(place).value() : Reservation();
}

void ReplicaRepair::OnFetched(const std::shared_ptr<Source>& source, Result<FetchResult> result) {
  for (std::size_t at = 0; at < source->leased.size(); ++at) {
    const Wanted& wanted = source->batch[source->leased[at]];
    const bool came = result.ok() && at < result->blocks.size() && result->blocks[at].has_value();
    if (came) {
      Spread(std::move(*result->blocks[at]), wanted);
    } else {
      Retry(wanted.job);
    }
  }
  source->link->Release({source->lease_id});
  EndPart();
}

void ReplicaRepair::Spread(PinnedBlock block, const Wanted& wanted) {
  PoolNode& pool = *environment_.pool;
  const NodeIndex self = pool.context().self.node;
  Replicator::Copy copy;
  copy.offer_first = true;
  for (const NodeIndex target : wanted.targets) {
    if (target != self) copy.targets.push_back(target);
  }
  const std::size_t here = wanted.targets.size() - copy.targets.size();
  if (here > 0) environment_.metrics->rereplicated.Add();
  if (copy.targets.empty()) return;
  if (here == 0) {  // a fetch that ended here was charged already
    MutexLock lock(mu_);
    rate_.Spend(block.header().length_bytes * copy.targets.size(), pool.context().clock->Now());
  }
  copy.owed_if_missed = false;
  copy.block = std::move(block);
  copy.done = [this, pass = environment_.gate->EnterShared(), job = wanted.job,
               targets = copy.targets.size()](std::size_t stored) {
    environment_.metrics->rereplicated.Add(static_cast<double>(stored));
    if (stored < targets) Retry(job);
  };
  environment_.replicator->Send(std::move(copy));
}

}  // namespace kvfabric
