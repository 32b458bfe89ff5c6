#pragma once

// TraceReader: reads a request trace line by line, so that memory is bounded by one line.
//
// Format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` (tokens)
// and `hash_ids`; further fields are ignored; plain or gzip, told apart by the first bytes. Owned
// by one user; one thread. Errors name file, line and cause; after one the reader stays at it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "trace/trace_request.h"

struct gzFile_s;

namespace kvfabric {

class TraceReader {
 public:
  struct Options {
    std::size_t max_line_bytes = std::size_t{16} << 20U;
  };

  static Result<std::unique_ptr<TraceReader>> Open(const std::filesystem::path& path,
                                                   Options options);
  static Result<std::unique_ptr<TraceReader>> Open(const std::filesystem::path& path) {
    return Open(path, Options{});
  }
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;  // would close the file twice
  TraceReader& operator=(const TraceReader&) = delete;

  // False at the end of the trace. Blank lines are passed over.
  Result<bool> Next(TraceRequest& request);
  // Of the line last read, from 1.
  std::uint64_t line_number() const { return line_number_; }

 private:
  TraceReader(std::string name, gzFile_s* file, Options options);

  // The next line without its end; false at the end of the file.
  Result<bool> NextLine(std::string_view& line);
  Result<bool> FillBuffer();
  Status AtLine(const Status& cause) const;

  const std::string name_;
  const Options options_;
  gzFile_s* const file_;  // owned
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // unread part of buffer_
  std::string line_;                 // a line that crosses the end of the buffer
  std::uint64_t line_number_ = 0;
  Status failed_;
};

// One line of a trace. The cause of a failure only; TraceReader adds file and line.
Status ParseTraceLine(std::string_view line, TraceRequest& request);

// A whole trace in memory, for those who need to look ahead.
struct Trace {
  std::vector<TraceRequest> requests;
  std::uint32_t block_tokens = 0;

  std::uint64_t PromptTokens() const;
  std::size_t DistinctFullBlocks() const;
};

struct TraceLimits {
  std::size_t max_requests = SIZE_MAX;                 // reading stops after so many
  std::size_t max_block_ids = std::size_t{64} << 20U;  // RESOURCE_EXHAUSTED beyond (512 MiB of ids)
};
Result<Trace> LoadTrace(const std::filesystem::path& path, TraceLimits limits = {});

}  // namespace kvfabric
