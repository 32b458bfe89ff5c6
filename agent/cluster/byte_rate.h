#pragma once

// ByteRate lets work begin at a mean byte rate: what was spent above it must first have passed.
// Externally synchronised.

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace kvfabric {

class ByteRate {
 public:
  // 0 = no limit.
  void SetLimit(std::uint64_t bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  bool MayStart(Clock::TimePoint now) const { return bytes_per_s_ == 0 || now >= free_at_; }
  void Spend(std::uint64_t bytes, Clock::TimePoint now) {
    if (bytes_per_s_ == 0) return;
    const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_);
    const auto cost =
        std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(seconds));
    free_at_ = std::max(free_at_, now) + cost;
  }

 private:
  std::uint64_t bytes_per_s_ = 0;
  Clock::TimePoint free_at_{};
};

}  // namespace kvfabric
