#pragma once

// EngineCounters: what happened in one engine since it began, for Stats and for /metrics. Any
// thread; one relaxed add each.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "common/metrics.h"

namespace kvfabric {

class EngineCounters {
 public:
  enum What : std::uint8_t {
    kPuts,
    kAlreadyExists,
    kNoSpace,
    kEvicted,
    kEvictedBytes,
    kSpilled,
    kDeleted,
    kChecksumMismatches,
    kCount,
  };

  // `registry` may be nullptr; else it outlives this.
  EngineCounters(MetricsRegistry* registry, const std::string& pool);

  void Add(What what, std::uint64_t amount = 1) {
    values_[what].fetch_add(amount, std::memory_order_relaxed);
    if (exported_[what] != nullptr) exported_[what]->Add(static_cast<double>(amount));
  }
  std::uint64_t Get(What what) const { return values_[what].load(std::memory_order_relaxed); }
  void ShowUse(std::uint64_t used_bytes, std::uint64_t pinned_bytes, std::uint64_t blocks);

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
  std::array<Counter*, kCount> exported_{};
  Gauge* used_bytes_ = nullptr;
  Gauge* pinned_bytes_ = nullptr;
  Gauge* blocks_ = nullptr;
};

}  // namespace kvfabric
