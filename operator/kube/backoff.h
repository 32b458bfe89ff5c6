#pragma once

// Backoff: doubling waits with jitter. One thread.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace kvfabric::kube {

class Backoff {
 public:
  struct Options {
    std::chrono::milliseconds first{5};
    std::chrono::milliseconds longest{1'000'000};
    double jitter = 0.0;  // adds up to this share of the wait
    std::uint64_t seed = 1;
  };

  explicit Backoff(Options options) : options_(options), random_(options.seed) {}

  // The wait before the next try.
  std::chrono::milliseconds Next() {
    const auto base = std::min(options_.longest, options_.first * (std::int64_t{1} << failures_));
    if (failures_ < 30) ++failures_;
    const double share = std::uniform_real_distribution<double>(0.0, options_.jitter)(random_);
    return base + std::chrono::milliseconds(
                      static_cast<std::int64_t>(static_cast<double>(base.count()) * share));
  }
  void Reset() { failures_ = 0; }
  unsigned failures() const { return failures_; }

 private:
  const Options options_;
  std::mt19937_64 random_;
  unsigned failures_ = 0;
};

}  // namespace kvfabric::kube
