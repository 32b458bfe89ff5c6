#pragma once

// Status and Result<T>: how every call that can fail says so.
//
// Codes are gRPC's seventeen, so that edges map one to one. A miss is a value (std::optional,
// an enum), never a Status. Text reads `object: action: cause (limits)` and tells an operator
// what to do. Values; any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/check.h"

namespace kvfabric {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,  // a budget or quota of ours; "NO_SPACE" on the wire
  kFailedPrecondition = 9,
  kAborted = 10,  // e.g. stale epoch: refresh and try again
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,  // checksum mismatch
  kUnauthenticated = 16,
};

std::string_view StatusCodeName(StatusCode code);

// What an edge knows beyond code and text (an HTTP status, when to try again), for the layers that
// ask for it by dynamic_cast; everybody else passes it on unread.
class StatusDetail {
 public:
  virtual ~StatusDetail() = default;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message,
         std::shared_ptr<const StatusDetail> detail = nullptr);

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const;
  // `NOT_FOUND: pool a/b: ...`, or `OK`.
  std::string ToString() const;
  // Null when there is none.
  const StatusDetail* detail() const { return body_ ? body_->detail.get() : nullptr; }
  // The same code and detail with `context: ` in front of the text; OK stays OK.
  Status WithContext(std::string_view context) const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message() == b.message();
  }

 private:
  struct Body {
    std::string message;
    std::shared_ptr<const StatusDetail> detail;
  };
  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<const Body> body_;  // null when empty: an OK Status is 24 bytes, no heap
};

Status InvalidArgument(std::string message);
Status DeadlineExceeded(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status PermissionDenied(std::string message);
Status ResourceExhausted(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status DataLoss(std::string message);
Status Unauthenticated(std::string message);
Status Cancelled(std::string message);
// `action: strerror(errno_value)`, with a code a caller can act on.
Status ErrnoStatus(int errno_value, std::string_view action);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    KVF_CHECK(!status_.ok(), "Result from an OK status carries no value");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  const T& value() const& {
    KVF_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  T& value() & {
    KVF_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  T&& value() && {
    KVF_CHECK(ok(), "value() of a failed Result");
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }
  template <typename U>
  T value_or(U&& fallback) const& {
    return ok() ? *value_ : static_cast<T>(std::forward<U>(fallback));
  }

 private:
  Status status_;
  std::optional<T> value_;
};

#define KVF_CONCAT_INNER(a, b) a##b
#define KVF_CONCAT(a, b) KVF_CONCAT_INNER(a, b)
#define KVF_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                               \
    if (::kvfabric::Status kvf_status = (expr); !kvf_status.ok()) return kvf_status; \
  } while (false)
#define KVF_ASSIGN_OR_RETURN(lhs, expr) \
  KVF_ASSIGN_OR_RETURN_INNER(KVF_CONCAT(kvf_result_, __LINE__), lhs, expr)
#define KVF_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return result.status();           \
  lhs = std::move(result).value()

}  // namespace kvfabric
