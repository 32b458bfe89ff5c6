#include "agent/cluster/put_call.h"

#include <utility>

#include "common/checksum.h"

namespace kvfabric {

PutCall::PutCall(Private, PoolRef pool, PutArgs args, Deadline deadline, Completion<PutAnswer> done)
    : pool_(std::move(pool)),
      args_(std::move(args)),
      deadline_(deadline),
      done_(std::move(done)),
      pass_(pool_->gate().Enter()) {}

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
  {
    MutexLock lock(mu_);
    answer_.status.assign(args_.items.size(), PutStatus::kFailed);
    answer_.copies.assign(args_.items.size(), 0);
    parts_ = ends.size() + 1;
  }
  begin = 0;
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

PutStatus PutCall::PutOne(std::size_t at) {
  if (deadline_.Passed(*pool_->context().clock)) return PutStatus::kFailed;
  Result<Reservation> reservation = pool_->engine().Reserve(HeaderOf(at), BlockOrigin::kPut);
  if (!reservation.ok()) {
    switch (reservation.status().code()) {
      case StatusCode::kAlreadyExists:
        return PutStatus::kAlreadyExists;
      case StatusCode::kResourceExhausted:
        return PutStatus::kNoSpace;
      default:
        return PutStatus::kFailed;
    }
  }
  const std::uint64_t computed = CopyAndChecksum(reservation->bytes(), args_.items[at].bytes);
  const Result<PinnedBlock> block = std::move(*reservation).Commit(computed);
  if (block.ok()) return PutStatus::kOk;
  if (block.status().code() == StatusCode::kDataLoss) return PutStatus::kChecksumMismatch;
  if (block.status().code() == StatusCode::kAlreadyExists) return PutStatus::kAlreadyExists;
  return PutStatus::kFailed;
}

void PutCall::RunChunk(std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) {
    const PutStatus status = PutOne(at);
    CountStatus(status);
    MutexLock lock(mu_);
    answer_.status[at] = status;
    const bool here = status == PutStatus::kOk || status == PutStatus::kAlreadyExists;
    answer_.copies[at] = here ? 1 : 0;
  }
  EndPart();
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

void PutCall::EndPart() {
  PutAnswer answer;
  {
    MutexLock lock(mu_);
    if (--parts_ > 0) return;
    answer = std::move(answer_);
  }
  done_(std::move(answer));
}

}  // namespace kvfabric
