#pragma once

// PushPromises: room that was promised to peers who offered blocks and have not sent them yet, so
// that offers which arrive together do not share the same free bytes. Owned by PoolNode; any
// thread. Promises nobody keeps fade: half of them every kFadePeriod.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric {

class PushPromises {
 public:
  static constexpr std::chrono::seconds kFadePeriod{2};

  // True, and promised, when `bytes` fit besides what was promised before. `free_bytes()` is asked
  // after the promises were read: what arrives in between counts twice rather than not at all.
  template <typename FreeBytes>
  bool Take(std::uint64_t bytes, const FreeBytes& free_bytes) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (promised_ + bytes > free_bytes()) return false;
    promised_ += bytes;
    return true;
  }
  // They came.
  void Fulfil(std::uint64_t bytes) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    promised_ -= std::min(promised_, bytes);
  }
  void Fade(Clock::TimePoint now) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (now < fade_at_) return;
    fade_at_ = now + kFadePeriod;
    promised_ /= 2;
  }
  std::uint64_t promised_bytes() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return promised_;
  }

 private:
  mutable Mutex mu_;
  std::uint64_t promised_ GUARDED_BY(mu_) = 0;
  Clock::TimePoint fade_at_ GUARDED_BY(mu_){};
};

}  // namespace kvfabric
