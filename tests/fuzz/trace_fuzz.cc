// The trace reader on any bytes: as a line, and as a file, plain or gzip. Whatever it takes must
// keep its promises; whatever it refuses must say the line.

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/unique_fd.h"
#include "trace/trace_reader.h"

namespace kvfabric {
namespace {

void ReadAsLine(std::string_view text) {
  TraceRequest request;
  const Status status = ParseTraceLine(text, request);
  if (!status.ok()) {
    KVF_CHECK(!status.message().empty() && status.message().size() < 400, "text is bounded");
    return;
  }
  KVF_CHECK(std::isfinite(request.timestamp_ms) && request.timestamp_ms >= 0, "sane timestamp");
  KVF_CHECK(FullBlocks(request, 512).size() <= request.block_ids.size(), "blocks have ids");
}

void ReadAsFile(std::string_view bytes) {
  const UniqueFd file(::memfd_create("trace", MFD_CLOEXEC));
  KVF_CHECK(::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
            "cannot fill a memfd");
  auto reader =
      TraceReader::Open("/proc/self/fd/" + std::to_string(file.get()), {.max_line_bytes = 4096});
  KVF_CHECK(reader.ok(), "cannot open a memfd");
  TraceRequest request;
  for (;;) {
    const Result<bool> more = (*reader)->Next(request);
    if (more.ok() && *more) continue;
    if (!more.ok()) {
      KVF_CHECK(more.status().message().find(": line ") != std::string::npos, "line is named");
    }
    return;
  }
}

}  // namespace
}  // namespace kvfabric

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  kvfabric::ReadAsLine(bytes);
  kvfabric::ReadAsFile(bytes);
  return 0;
}
