#pragma once

// What the client of the Kubernetes API counts. Any thread.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/metrics.h"

namespace kvfabric::kube {

enum class ApiVerb : std::uint8_t {
  kGet,
  kList,
  kWatch,
  kCreate,
  kUpdate,
  kApply,
  kPatch,
  kDelete,
};
inline constexpr std::size_t kApiVerbCount = 8;
const char* NameOf(ApiVerb verb);

// Why a watch came to its end and must be started again.
enum class WatchEnd : std::uint8_t {
  kEnded,    // in good order, as it does every few minutes
  kGone,     // too far behind: 410
  kRefused,  // another answer than 200
  kSilent,   // not a byte for too long
  kBroken,   // everything else
};
inline constexpr std::size_t kWatchEndCount = 5;

class ApiMetrics {
 public:
  // `registry` null: nothing is counted.
  explicit ApiMetrics(MetricsRegistry* registry);

  // `code` 0: no answer came.
  void Requested(ApiVerb verb, int code, std::chrono::steady_clock::duration took);
  void Restarted(WatchEnd reason);
  void UnknownEvent();
  void SetTokenAge(std::optional<std::chrono::seconds> age);

 private:
  MetricsRegistry* const registry_;  // borrowed; may be null
  std::array<Histogram*, kApiVerbCount> seconds_{};
  std::array<Counter*, kWatchEndCount> restarts_{};
  Counter* unknown_events_ = nullptr;
  Gauge* token_age_ = nullptr;
};

}  // namespace kvfabric::kube
