#pragma once

// Small files read and written whole. Any thread.

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric::cli {

inline constexpr std::size_t kMaxSmallFileBytes = std::size_t{16} << 20U;

// NOT_FOUND when it is absent; RESOURCE_EXHAUSTED beyond `max_bytes`.
Result<std::string> ReadFile(const std::filesystem::path& file,
                             std::size_t max_bytes = kMaxSmallFileBytes);
// Writes beside it and renames: a reader sees the old text or the new one.
Status WriteFileAtomically(const std::filesystem::path& file, std::string_view text, mode_t mode);

}  // namespace kvfabric::cli
