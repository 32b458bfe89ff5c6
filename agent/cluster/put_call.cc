#include "agent/cluster/put_call.h"

#include <algorithm>
#include <utility>

#include "agent/cluster/replica_targets.h"
#include "common/checksum.h"

namespace kvfabric {

namespace {

PutStatus AnswerFor(const Status& put) {
  switch (put.code()) {
    case StatusCode::kOk:
      return PutStatus::kOk;
    case StatusCode::kAlreadyExists:
      return PutStatus::kAlreadyExists;
    case StatusCode::kResourceExhausted:
      return PutStatus::kNoSpace;
    case StatusCode::kDataLoss:
      return PutStatus::kChecksumMismatch;
    default:
      return PutStatus::kFailed;
  }
}

}  // namespace

PutCall::PutCall(Private, PoolRef pool, PutArgs args, Deadline deadline, Completion<PutAnswer> done)
    : pool_(std::move(pool)),
      args_(std::move(args)),
      deadline_(deadline),
      done_(std::move(done)),
      pass_(pool_->gate().Enter()),
      spec_(pool_->spec()),
      routing_(pool_->routing()) {}

void PutCall::Start(PoolRef pool, PutArgs args, Deadline deadline, Completion<PutAnswer> done) {
  std::make_shared<PutCall>(Private{}, std::move(pool), std::move(args), deadline, std::move(done))
      ->Run();
}

void PutCall::Run() {
  if (args_.items.size() != args_.range.keys.size()) {
    done_(InvalidArgument("put: " + std::to_string(args_.items.size()) + " blocks for " +
                          std::to_string(args_.range.keys.size()) + " keys"));
    return;
  }
  Result<RequestKeys> keys =
      RequestKeys::Resolve(*args_.ns, {&args_.lane, 1}, args_.range, pool_->spec()->slots, true);
  if (!keys.ok()) {
    done_(keys.status());
    return;
  }
  keys_ = std::move(keys).value();
  const std::vector<std::size_t> ends = ChunkEnds();
  {
    MutexLock lock(mu_);
    answer_.status.assign(args_.items.size(), PutStatus::kFailed);
    answer_.copies.assign(args_.items.size(), 0);
    parts_ = ends.size() + 1;
    if (spec_->acks_replicated) {
      timer_ = pool_->context().timer->At(deadline_.at(), [weak = weak_from_this()] {
        if (const auto self = weak.lock(); self != nullptr) self->OnDeadline();
      });
    }
  }
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    auto task = [self = shared_from_this(), begin, end] { self->RunChunk(begin, end); };
    if (!pool_->context().copy->Submit(std::move(task))) {
      pool_->metrics().put_failed.Add(static_cast<double>(end - begin));
      EndPart();
    }
    begin = end;
  }
  EndPart();
}

std::vector<std::size_t> PutCall::ChunkEnds() const {
  std::vector<std::size_t> ends;
  std::uint64_t bytes = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < args_.items.size(); ++at) {
    bytes += args_.items[at].bytes.size();
    if (at + 1 < args_.items.size() && bytes < kChunkBytes && at + 1 - begin < kChunkItems)
      continue;
    ends.push_back(at + 1);
    begin = at + 1;
    bytes = 0;
  }
  return ends;
}

BlockHeader PutCall::HeaderOf(std::size_t at) const {
  BlockHeader header;
  header.id = keys_.id(0, at);
  header.ns = args_.ns;
  header.lane = args_.lane;
  header.key = args_.range.keys[at];
  header.parent = keys_.parent(0, at);
  if (args_.ns->kind == NamespaceKind::kChain) {
    header.depth = args_.range.first + static_cast<std::uint32_t>(at);
  }
  header.slot = keys_.slot(at);
  header.length_bytes = args_.items[at].bytes.size();
  header.checksum = args_.items[at].checksum;
  header.metadata = args_.items[at].metadata;
  return header;
}

bool PutCall::KeptHere(std::size_t at) const {
  if (!spec_->locality_spread || routing_ == nullptr) return true;
  const auto owners = routing_->map().ByteOwners(keys_.slot(at));
  if (std::ranges::find(owners, routing_->self_member()) != owners.end()) return true;
  // No owner can be reached: better here than nowhere.
  return std::ranges::none_of(owners, [this](MemberIndex owner) {
    return owner != kNoOwner && pool_->context().peers->Up(routing_->NodeOf(owner));
  });
}

Status PutCall::PutOne(std::size_t at, bool* kept) {
  *kept = KeptHere(at);
  if (deadline_.Passed(*pool_->context().clock)) return DeadlineExceeded("put: no time left");
  const BlockOrigin origin = *kept ? BlockOrigin::kPut : BlockOrigin::kTransient;
  Result<Reservation> reservation = pool_->engine().Reserve(HeaderOf(at), origin);
  if (origin == BlockOrigin::kTransient &&
      reservation.status().code() == StatusCode::kResourceExhausted) {
    // More at once than may pass through: it stays here too, as a copy that goes first.
    BlockHeader header = HeaderOf(at);
    header.has_other_holder = true;
    reservation = pool_->engine().Reserve(std::move(header), BlockOrigin::kPut);
  }
  if (!reservation.ok()) return reservation.status();
  const std::uint64_t computed = CopyAndChecksum(reservation->bytes(), args_.items[at].bytes);
  Result<PinnedBlock> block = std::move(*reservation).Commit(computed);
  if (!block.ok()) return block.status();
  SendCopies(at, std::move(*block), kept);
  return Status::Ok();
}

void PutCall::SendCopies(std::size_t at, PinnedBlock block, bool* kept) {
  if (routing_ == nullptr || (*kept && spec_->replicas < 2)) return;
  const NodeIndex self = pool_->context().self.node;
  const std::span<const NodeIndex> holders(&self, *kept ? 1 : 0);
  Replicator::Copy copy;
  copy.targets =
      ReplicaTargets(*routing_, *pool_->context().peers, keys_.slot(at), holders, spec_->replicas);
  if (!*kept && copy.targets.empty()) {  // the last owner went down since
    *kept = pool_->engine().Keep(block.id());
    pool_->engine().SetHasOtherHolder(block.id(), false);
    if (*kept && spec_->replicas < 2) return;
  }
  copy.owed_if_missed = *kept;
  if (spec_->acks_replicated) {
    MutexLock lock(mu_);
    ++copies_;
    copy.done = [self_call = shared_from_this(), at](std::size_t stored) {
      self_call->EndCopies(at, stored);
    };
  }
  copy.block = std::move(block);
  pool_->replicator().Send(std::move(copy));
}

void PutCall::RunChunk(std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) {
    bool kept = false;
    const Status put = PutOne(at, &kept);
    const PutStatus status = AnswerFor(put);
    CountStatus(status);
    const bool here = status == PutStatus::kAlreadyExists || (put.ok() && kept);
    MutexLock lock(mu_);
    answer_.status[at] = status;
    answer_.copies[at] = static_cast<std::uint8_t>(answer_.copies[at] + (here ? 1 : 0));
  }
  EndPart();
}

void PutCall::EndCopies(std::size_t at, std::size_t stored) {
  {
    MutexLock lock(mu_);
    --copies_;
    if (!completed_) {
      answer_.copies[at] = static_cast<std::uint8_t>(answer_.copies[at] + stored);
    }
  }
  CompleteIfDone(false);
}

void PutCall::EndPart() {
  {
    MutexLock lock(mu_);
    --parts_;
  }
  CompleteIfDone(deadline_.Passed(*pool_->context().clock));
}

void PutCall::OnDeadline() { CompleteIfDone(true); }

void PutCall::CompleteIfDone(bool late) {
  PutAnswer answer;
  {
    MutexLock lock(mu_);
    if (completed_ || parts_ > 0 || (copies_ > 0 && !late)) return;
    completed_ = true;
    answer = answer_;
    if (timer_ != 0) static_cast<void>(pool_->context().timer->Cancel(timer_));
  }
  done_(std::move(answer));
}

void PutCall::CountStatus(PutStatus status) const {
  PoolMetrics& metrics = pool_->metrics();
  switch (status) {
    case PutStatus::kOk:
      return metrics.put_ok.Add();
    case PutStatus::kAlreadyExists:
      return metrics.put_already_exists.Add();
    case PutStatus::kNoSpace:
      return metrics.put_no_space.Add();
    case PutStatus::kChecksumMismatch:
    case PutStatus::kFailed:
      return metrics.put_failed.Add();
  }
}

}  // namespace kvfabric
