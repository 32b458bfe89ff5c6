#include "trace/trace_directory.h"

#include <system_error>

namespace kvfabric {

Result<TraceDirectory> FindTraceDirectory(const char* from_environment,
                                          const std::filesystem::path& source_root) {
  std::error_code ignored;
  if (from_environment != nullptr && *from_environment != '\0') {
    if (!std::filesystem::is_directory(from_environment, ignored)) {
      return NotFound("KVF_TRACES " + std::string(from_environment) +
                      ": find traces: no such directory (name one or unset the variable)");
    }
    return TraceDirectory{from_environment, true};
  }
  const std::filesystem::path shared = source_root / ".." / "shared" / "traces";
  if (std::filesystem::is_directory(shared, ignored)) return TraceDirectory{shared, true};
  const std::filesystem::path excerpt = source_root / "examples";
  if (std::filesystem::exists(excerpt / kTraceExcerpt, ignored)) {
    return TraceDirectory{excerpt, false};
  }
  return NotFound("traces: find: neither " + shared.string() + " nor " +
                  (excerpt / kTraceExcerpt).string() + " is there (set KVF_TRACES)");
}

}  // namespace kvfabric
