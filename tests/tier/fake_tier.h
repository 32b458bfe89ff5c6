#pragma once

// FakeTier: a Tier over plain memory that holds every batch until the test lets it go, and fails
// the operations that the test names. Any thread.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/tier/tier.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/mutex.h"

namespace kvfabric {

class FakeTier final : public Tier {
 public:
  FakeTier(std::uint64_t capacity_bytes, const Clock& clock)
      : capacity_bytes_(capacity_bytes), clock_(clock) {}

  std::string_view name() const override { return "fake"; }

  Result<TierSlot> Allocate(const std::string&, std::uint64_t bytes) override {
    MutexLock lock(mu_);
    if (used_bytes_ + bytes > capacity_bytes_) return ResourceExhausted("fake tier: full");
    used_bytes_ += bytes;
    const std::uint64_t region = next_region_++;
    regions_[region].resize(bytes);
    return TierSlot{.region = region, .offset = 0, .bytes = bytes};
  }
  void Free(const TierSlot& slot) override {
    MutexLock lock(mu_);
    used_bytes_ -= slot.bytes;
    KVF_CHECK(regions_.erase(slot.region) == 1, "slot given back twice");
  }
  void Submit(std::vector<TierOperation> batch, Deadline deadline, Executor& executor,
              TierCompletion done) override {
    MutexLock lock(mu_);
    held_.push_back({std::move(batch), deadline, &executor, std::move(done)});
  }

  // The next operations on that region fail with `status`.
  void FailRegion(std::uint64_t region, Status status) {
    MutexLock lock(mu_);
    faults_[region] = std::move(status);
  }
  // Does the oldest batch that is held; false when there is none.
  bool LetOneGo() {
    MutexLock lock(mu_);
    if (held_.empty()) return false;
    Held held = std::move(held_.front());
    held_.pop_front();
    std::vector<TierResult> results;
    for (const TierOperation& operation : held.batch) {
      results.push_back(held.deadline.Passed(clock_)
                            ? TierResult{.status = DeadlineExceeded("fake tier: late")}
                            : Do(operation));
    }
    return held.executor->Submit(
        [done = std::move(held.done), moved = std::move(results)] { done(moved); });
  }

 private:
  struct Held {
    std::vector<TierOperation> batch;
    Deadline deadline;
    Executor* executor = nullptr;
    TierCompletion done;
  };

  TierResult Do(const TierOperation& operation) REQUIRES(mu_) {
    const auto fault = faults_.find(operation.slot.region);
    if (fault != faults_.end()) return {.status = fault->second};
    const std::uint64_t length = operation.buffer.size_bytes;
    const MutableByteSpan slot(regions_.at(operation.slot.region).data(), length);
    const MutableByteSpan outside(operation.buffer.data, length);
    const bool store = operation.kind == TierOperation::Kind::kStore;
    const std::uint64_t checksum =
        store ? CopyAndChecksum(slot, outside) : CopyAndChecksum(outside, slot);
    if (operation.checksum != 0 && operation.checksum != checksum) {
      return {.status = DataLoss("fake tier: checksum"), .checksum = checksum};
    }
    return {.status = Status::Ok(), .checksum = checksum};
  }

  const std::uint64_t capacity_bytes_;
  const Clock& clock_;
  Mutex mu_;
  std::uint64_t used_bytes_ GUARDED_BY(mu_) = 0;
  std::uint64_t next_region_ GUARDED_BY(mu_) = 1;
  std::map<std::uint64_t, std::vector<std::byte>> regions_ GUARDED_BY(mu_);
  std::map<std::uint64_t, Status> faults_ GUARDED_BY(mu_);
  std::deque<Held> held_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
