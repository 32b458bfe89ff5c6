#pragma once

// Times as Kubernetes writes them: RFC 3339, UTC. Only for what people read and for unix-time
// fields of objects; never for time-outs.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvfabric::kube {

std::string FormatTime(std::int64_t unix_us);       // 2026-11-30T06:48:00Z
std::string FormatMicroTime(std::int64_t unix_us);  // 2026-11-30T06:48:00.000000Z
// Both forms, fractions of any length, UTC only. Nullopt for anything else.
std::optional<std::int64_t> ParseTime(std::string_view text);

}  // namespace kvfabric::kube
