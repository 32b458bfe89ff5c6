#pragma once

// Where request traces lie: $KVF_TRACES, else ../shared/traces, else the excerpt in examples/.
// Any thread. The environment is read by main() and tests and passed in.

#include <filesystem>
#include <string>

#include "common/status.h"

namespace kvfabric {

struct TraceDirectory {
  std::filesystem::path path;
  bool found = false;  // false: only the excerpt; the caller counts the rest as skipped
};

inline constexpr const char* kTraceExcerpt = "conversation_200.jsonl";

// `from_environment` is the value of KVF_TRACES, null where unset; `source_root` is where the
// sources are. A value that names no directory is an error, not a reason to look elsewhere.
Result<TraceDirectory> FindTraceDirectory(const char* from_environment,
                                          const std::filesystem::path& source_root = ".");

}  // namespace kvfabric
