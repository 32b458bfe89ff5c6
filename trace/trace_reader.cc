#include "trace/trace_reader.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace kvfabric {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{256} << 10U;

bool Blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<std::unique_ptr<TraceReader>> TraceReader::Open(const std::filesystem::path& path,
                                                       Options options) {
  const std::string name = "trace " + path.string();
  errno = 0;
  // zlib passes a file that does not start with gzip's magic through as it is.
  gzFile_s* file = gzopen(path.c_str(), "rbe");
  if (file == nullptr) {
    return ErrnoStatus(errno != 0 ? errno : ENOMEM, "open").WithContext(name);
  }
  gzbuffer(file, kBufferBytes);
  return std::unique_ptr<TraceReader>(new TraceReader(name, file, options));
}

TraceReader::TraceReader(std::string name, gzFile_s* file, Options options)
    : name_(std::move(name)), options_(options), file_(file), buffer_(kBufferBytes) {}

TraceReader::~TraceReader() { gzclose(file_); }

Result<bool> TraceReader::Next(TraceRequest& request) {
  if (!failed_.ok()) return failed_;
  std::string_view line;
  for (;;) {
    Result<bool> read = NextLine(line);
    if (!read.ok()) return failed_ = AtLine(read.status());
    if (!*read) return false;
    if (!Blank(line)) break;
  }
  if (Status parsed = ParseTraceLine(line, request); !parsed.ok()) return failed_ = AtLine(parsed);
  return true;
}

Result<bool> TraceReader::NextLine(std::string_view& line) {
  line_.clear();
  ++line_number_;
  for (;;) {
    if (begin_ == end_) {
      KVF_ASSIGN_OR_RETURN(const bool more, FillBuffer());
      if (!more && line_.empty()) return false;
      if (!more) {
        line = line_;  // the last line has no end
        return true;
      }
    }
    const char* from = buffer_.data() + begin_;
    const void* line_end = std::memchr(from, '\n', end_ - begin_);
    const std::size_t bytes =
        line_end != nullptr ? static_cast<std::size_t>(static_cast<const char*>(line_end) - from)
                            : end_ - begin_;
    if (line_.size() + bytes > options_.max_line_bytes) {
      return InvalidArgument("line too long (limit " + std::to_string(options_.max_line_bytes) +
                             " bytes)");
    }
    begin_ += bytes + (line_end != nullptr ? 1 : 0);
    if (line_end != nullptr && line_.empty()) {
      line = {from, bytes};  // valid until the buffer is filled again
      return true;
    }
    line_.append(from, bytes);
    if (line_end != nullptr) {
      line = line_;
      return true;
    }
  }
}

Result<bool> TraceReader::FillBuffer() {
  begin_ = end_ = 0;
  errno = 0;
  const int bytes = gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
  const int read_errno = errno;
  if (bytes > 0) {
    end_ = static_cast<std::size_t>(bytes);
    return true;
  }
  // A file cut off in the middle of its gzip stream is no error to gzread, only to gzerror.
  int code = Z_OK;
  const char* text = gzerror(file_, &code);
  if (code == Z_OK || code == Z_STREAM_END) return false;
  if (code == Z_ERRNO) return ErrnoStatus(read_errno, "read");
  if (code == Z_BUF_ERROR) return DataLoss("read gzip: file is cut off (unexpected end of stream)");
  return DataLoss(std::string("read gzip: ") + text);
}

Status TraceReader::AtLine(const Status& cause) const {
  return cause.WithContext(name_ + ": line " + std::to_string(line_number_));
}

std::uint64_t Trace::PromptTokens() const {
  std::uint64_t tokens = 0;
  for (const TraceRequest& request : requests) tokens += request.input_length;
  return tokens;
}

std::size_t Trace::DistinctFullBlocks() const {
  std::unordered_set<std::uint64_t> ids;
  for (const TraceRequest& request : requests) {
    const auto blocks = FullBlocks(request, block_tokens);
    ids.insert(blocks.begin(), blocks.end());
  }
  return ids.size();
}

Result<Trace> LoadTrace(const std::filesystem::path& path, TraceLimits limits) {
  KVF_ASSIGN_OR_RETURN(const auto reader, TraceReader::Open(path));
  Trace trace;
  TraceRequest request;
  std::size_t block_ids = 0;
  while (trace.requests.size() < limits.max_requests) {
    KVF_ASSIGN_OR_RETURN(const bool more, reader->Next(request));
    if (!more) break;
    block_ids += request.block_ids.size();
    if (block_ids > limits.max_block_ids) {
      return ResourceExhausted("trace " + path.string() + ": line " +
                               std::to_string(reader->line_number()) +
                               ": too many block ids for memory (limit " +
                               std::to_string(limits.max_block_ids) + "): read fewer requests");
    }
    trace.requests.push_back(request);
  }
  if (trace.requests.empty()) {
    return InvalidArgument("trace " + path.string() + ": load: no request in it");
  }
  Result<std::uint32_t> block_tokens = InferBlockTokens(trace.requests);
  if (!block_tokens.ok()) return block_tokens.status().WithContext("trace " + path.string());
  trace.block_tokens = *block_tokens;
  return trace;
}

}  // namespace kvfabric
