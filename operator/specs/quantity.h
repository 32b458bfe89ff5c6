#pragma once

// Quantities and durations as pools write them. Pure.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvfabric {

// Bytes: `64Mi`, `1Gi`, `500M`, `1.5Gi`, `1024`; whole bytes after rounding up, as the API server
// rounds. Nullopt: not a quantity, or 2^63 and more.
std::optional<std::uint64_t> ParseQuantity(std::string_view text);
// `64Mi`: the largest binary unit that divides it, else a plain number.
std::string FormatQuantity(std::uint64_t bytes);

// `5m`, `60s`, `50ms`, `1h30m`, `1.5s`; nullopt: not a duration, finer than 1 us, or more than
// 100 years.
std::optional<std::chrono::microseconds> ParseDuration(std::string_view text);
std::string FormatDuration(std::chrono::microseconds duration);

}  // namespace kvfabric
