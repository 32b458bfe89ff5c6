// ParseTraceLine: one JSON object, read by events, without a document in memory.

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "trace/trace_reader.h"

namespace kvfabric {
namespace {

constexpr std::string_view kFieldNames[] = {"timestamp", "input_length", "output_length",
                                            "hash_ids"};
constexpr std::size_t kFields = 4;
enum Field : std::size_t { kTimestamp, kInputLength, kOutputLength, kHashIds, kOther };

// What a parser error says about the place and the cause, without the library's prefix; bounded,
// as it may quote a token of any length.
std::string Cause(std::string text) {
  constexpr std::size_t kMaxBytes = 160;
  if (const std::size_t prefix = text.find("] "); prefix != std::string::npos) {
    text.erase(0, prefix + 2);
  }
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

class LineHandler {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit LineHandler(TraceRequest& request) : request_(request) {}

  std::string failure() const { return failure_; }
  // The first field that did not come, or empty.
  std::string_view missing() const {
    for (std::size_t field = 0; field < kFields; ++field) {
      if (!seen_[field]) return kFieldNames[field];
    }
    return {};
  }

  bool null() { return Other("null"); }
  bool boolean(bool) { return Other("a boolean"); }
  bool string(string_t&) { return Other("a string"); }
  bool binary(binary_t&) { return Other("bytes"); }
  bool number_integer(number_integer_t) { return Other("a negative number"); }
  bool number_unsigned(number_unsigned_t value) {
    if (AtHashId()) {
      request_.block_ids.push_back(value);
      return true;
    }
    if (depth_ != 1) return Other("a number");
    switch (field_) {
      case kTimestamp:
        request_.timestamp_ms = static_cast<double>(value);
        return true;
      case kInputLength:
        return Tokens(value, request_.input_length);
      case kOutputLength:
        return Tokens(value, request_.output_length);
      default:
        return Other("a number");
    }
  }
  bool number_float(number_float_t value, const string_t&) {
    if (depth_ != 1 || field_ != kTimestamp) return Other("a fraction");
    if (!std::isfinite(value) || value < 0) return Fail("timestamp: not finite or negative");
    request_.timestamp_ms = value;
    return true;
  }

  bool key(string_t& name) {
    if (depth_ != 1) return true;
    field_ = kOther;
    for (std::size_t field = 0; field < kFields; ++field) {
      if (name != kFieldNames[field]) continue;
      if (seen_[field]) return Fail(std::string(name) + ": given twice");
      seen_[field] = true;
      field_ = static_cast<Field>(field);
    }
    return true;
  }
  bool start_object(std::size_t) {
    if (depth_ > 0 && !Other("an object")) return false;
    ++depth_;
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) {
    const bool hash_ids = depth_ == 1 && field_ == kHashIds;
    if (!hash_ids && !Other("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    return Fail("not a JSON object: " + Cause(error.what()));
  }

 private:
  bool AtHashId() const { return depth_ == 2 && field_ == kHashIds; }

  bool Tokens(std::uint64_t value, std::uint32_t& to) {
    if (value > std::numeric_limits<std::uint32_t>::max()) {
      return Fail(std::string(kFieldNames[field_]) + ": too large (" + std::to_string(value) +
                  ", limit 4294967295)");
    }
    to = static_cast<std::uint32_t>(value);
    return true;
  }

  // A value of a kind that no field of ours has: fine in further fields and what is inside them.
  bool Other(const char* found) {
    if (depth_ == 0) return Fail(std::string("not a JSON object (found ") + found + ")");
    if (field_ == kOther) return true;
    if (field_ == kHashIds) {
      return Fail(std::string("hash_ids: not an array of whole numbers >= 0 (found ") + found +
                  ")");
    }
    return Fail(std::string(kFieldNames[field_]) + ": not a " +
                (field_ == kTimestamp ? "number" : "whole number") + " >= 0 (found " + found + ")");
  }

  bool Fail(std::string cause) {
    failure_ = std::move(cause);
    return false;
  }

  TraceRequest& request_;
  std::size_t depth_ = 0;
  Field field_ = kOther;
  bool seen_[kFields] = {};
  std::string failure_;
};

}  // namespace

Status ParseTraceLine(std::string_view line, TraceRequest& request) {
  request.block_ids.clear();  // keeps its memory from line to line
  LineHandler handler(request);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &handler)) {
    return InvalidArgument(handler.failure());
  }
  if (const std::string_view missing = handler.missing(); !missing.empty()) {
    return InvalidArgument(std::string(missing) + ": missing");
  }
  return Status::Ok();
}

}  // namespace kvfabric
