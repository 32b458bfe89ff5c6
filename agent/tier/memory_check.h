#pragma once

// The memory check before serving: does the machine, and the cgroup we are in, have what the
// configured caps will take? Too little fails at start with the figures, never
// later. CheckMemory and the parsers are pure; ReadMemoryFigures reads /proc and /sys.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric {

// Everything but arenas and index: code, stacks, buffers of bounded size, the probe's memfd.
inline constexpr std::uint64_t kProcessOverheadBytes = std::uint64_t{96} << 20U;

struct MemoryNeed {
  std::uint64_t arena_bytes = 0;
  std::uint64_t index_bytes = 0;
};

struct MemoryFigures {
  std::uint64_t available_bytes = 0;                               // MemAvailable of /proc/meminfo
  std::optional<std::uint64_t> cgroup_limit_bytes = std::nullopt;  // nullopt = none
  std::uint64_t cgroup_used_bytes = 0;  // without page cache that can be dropped
};

// RESOURCE_EXHAUSTED naming every figure when it does not fit.
Status CheckMemory(const MemoryNeed& need, const MemoryFigures& figures);

// nullopt where the text has no such figure.
std::optional<std::uint64_t> ParseMemAvailable(std::string_view meminfo);
// `max` and nonsense are nullopt.
std::optional<std::uint64_t> ParseCgroupBytes(std::string_view text);
// inactive_file of memory.stat, 0 where there is none.
std::uint64_t ParseInactiveFile(std::string_view memory_stat);

// Unified hierarchy (cgroup v2): the tightest limit on the way from our cgroup up to the root
// counts. `root` is "/" but in tests.
MemoryFigures ReadMemoryFigures(const std::string& root = "/");

}  // namespace kvfabric
