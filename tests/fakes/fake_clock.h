#pragma once

// FakeClock: time that moves only when a test says so. Any thread.

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace kvfabric {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(std::chrono::nanoseconds(steady_ns_.load(std::memory_order_acquire)));
  }
  std::int64_t UnixMicros() const override {
    return unix_offset_us_.load(std::memory_order_acquire) +
           steady_ns_.load(std::memory_order_acquire) / 1000;
  }
  void Advance(Duration by) {
    steady_ns_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(by).count(),
                         std::memory_order_acq_rel);
  }
  // Moves unix time only: a wall clock that was set, forward or back.
  void JumpUnix(std::chrono::microseconds by) { unix_offset_us_.fetch_add(by.count()); }

 private:
  std::atomic<std::int64_t> steady_ns_{1'000'000'000'000};
  std::atomic<std::int64_t> unix_offset_us_{1'700'000'000'000'000};
};

}  // namespace kvfabric
