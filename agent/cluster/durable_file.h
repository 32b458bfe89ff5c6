#pragma once

// Small files that are whole after a crash: written beside, synced, renamed into place. For the
// agent's state directory; pure functions over the file system, any thread, one writer per path.

#include <filesystem>
#include <optional>
#include <string>

#include "common/bytes.h"
#include "common/status.h"

namespace kvfabric {

Status WriteFileDurably(const std::filesystem::path& path, ByteSpan contents);
// nullopt when there is no such file; RESOURCE_EXHAUSTED above `max_bytes`.
Result<std::optional<std::string>> ReadWholeFile(const std::filesystem::path& path,
                                                 std::size_t max_bytes);
Status RemoveFileDurably(const std::filesystem::path& path);

}  // namespace kvfabric
