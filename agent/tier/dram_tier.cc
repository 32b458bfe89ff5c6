#include "agent/tier/dram_tier.h"

#include <memory>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"

namespace kvfabric {

namespace {

TierResult Move(const DramArena& arena, const TierOperation& operation) {
  const Buffer& buffer = operation.buffer;
  if (buffer.memory == MemoryKind::kDevice) {
    return {.status = InvalidArgument("DRAM tier: move: device memory needs the GPU tier")};
  }
  if (buffer.size_bytes > operation.slot.bytes) {
    return {.status =
                InvalidArgument("DRAM tier: move: buffer of " + std::to_string(buffer.size_bytes) +
                                " bytes, slot of " + std::to_string(operation.slot.bytes))};
  }
  const MutableByteSpan slot = arena.BytesAt({.data = nullptr,
                                              .memfd_id = operation.slot.region,
                                              .offset = operation.slot.offset,
                                              .bytes = buffer.size_bytes});
  const MutableByteSpan outside(buffer.data, buffer.size_bytes);
  const bool store = operation.kind == TierOperation::Kind::kStore;
  const std::uint64_t checksum =
      store ? CopyAndChecksum(slot, outside) : CopyAndChecksum(outside, slot);
  if (operation.checksum != 0 && operation.checksum != checksum) {
    return {.status = DataLoss("DRAM tier: move: checksum mismatch"), .checksum = checksum};
  }
  return {.status = Status::Ok(), .checksum = checksum};
}

struct Batch {
  std::vector<TierOperation> operations;
  Deadline deadline;
  Executor* executor = nullptr;
  TierCompletion done;

  void Complete(std::vector<TierResult> results) {
    const bool taken =
        executor->Submit([finish = std::move(done), moved = std::move(results)] { finish(moved); });
    KVF_CHECK(taken, "the executor of a completion refused it");
  }
};

}  // namespace

DramTier::DramTier(DramArena& arena, Executor& workers, const Clock& clock)
    : arena_(arena), workers_(workers), clock_(clock) {}

Result<TierSlot> DramTier::Allocate(const std::string& tenant, std::uint64_t bytes) {
  KVF_ASSIGN_OR_RETURN(const ArenaSlot slot, arena_.Allocate(tenant, bytes));
  return TierSlot{.region = slot.memfd_id, .offset = slot.offset, .bytes = slot.bytes};
}

void DramTier::Free(const TierSlot& slot) {
  arena_.Free(
      {.data = nullptr, .memfd_id = slot.region, .offset = slot.offset, .bytes = slot.bytes});
}

void DramTier::Submit(std::vector<TierOperation> batch, Deadline deadline, Executor& executor,
                      TierCompletion done) {
  auto work = std::make_shared<Batch>();
  *work = {.operations = std::move(batch),
           .deadline = deadline,
           .executor = &executor,
           .done = std::move(done)};
  const bool queued = workers_.Submit([this, work] {
    std::vector<TierResult> results;
    results.reserve(work->operations.size());
    for (const TierOperation& operation : work->operations) {
      if (work->deadline.Passed(clock_)) {
        results.push_back({.status = DeadlineExceeded("DRAM tier: move: deadline passed")});
      } else {
        results.push_back(Move(arena_, operation));
      }
    }
    work->Complete(std::move(results));
  });
  if (queued) return;
  std::vector<TierResult> refused(work->operations.size());
  for (TierResult& result : refused) {
    result.status = Unavailable("DRAM tier: move: the worker queue is full");
  }
  work->Complete(std::move(refused));
}

}  // namespace kvfabric
