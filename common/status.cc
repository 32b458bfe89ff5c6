#include "common/status.h"

#include <array>
#include <cerrno>
#include <system_error>

namespace kvfabric {

namespace {
constexpr std::array<std::string_view, 17> kNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

const std::string& EmptyString() {
  static const std::string empty;
  return empty;
}

StatusCode CodeOf(int errno_value) {
  switch (errno_value) {
    case ENOENT:
      return StatusCode::kNotFound;
    case EEXIST:
      return StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
      return StatusCode::kPermissionDenied;
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return StatusCode::kResourceExhausted;
    case EADDRINUSE:
      return StatusCode::kFailedPrecondition;
    case ETIMEDOUT:
      return StatusCode::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return StatusCode::kUnavailable;
    case EINVAL:
      return StatusCode::kInvalidArgument;
    default:
      return StatusCode::kInternal;
  }
}
}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

Status::Status(StatusCode code, std::string message, std::shared_ptr<const StatusDetail> detail)
    : code_(code) {
  if (code != StatusCode::kOk && (!message.empty() || detail != nullptr)) {
    body_ = std::make_shared<const Body>(Body{std::move(message), std::move(detail)});
  }
}

const std::string& Status::message() const { return body_ ? body_->message : EmptyString(); }

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!message().empty()) text.append(": ").append(message());
  return text;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  std::string text(context);
  text.append(": ").append(message());
  return {code_, std::move(text), body_ ? body_->detail : nullptr};
}

Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
Status DeadlineExceeded(std::string m) { return {StatusCode::kDeadlineExceeded, std::move(m)}; }
Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
Status AlreadyExists(std::string m) { return {StatusCode::kAlreadyExists, std::move(m)}; }
Status PermissionDenied(std::string m) { return {StatusCode::kPermissionDenied, std::move(m)}; }
Status ResourceExhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
Status FailedPrecondition(std::string m) { return {StatusCode::kFailedPrecondition, std::move(m)}; }
Status Aborted(std::string m) { return {StatusCode::kAborted, std::move(m)}; }
Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
Status Unauthenticated(std::string m) { return {StatusCode::kUnauthenticated, std::move(m)}; }
Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }

Status ErrnoStatus(int errno_value, std::string_view action) {
  std::string text(action);
  text.append(": ").append(std::generic_category().message(errno_value));
  return {CodeOf(errno_value), std::move(text)};
}

}  // namespace kvfabric
