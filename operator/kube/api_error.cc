#include "operator/kube/api_error.h"

#include <algorithm>
#include <array>
#include <memory>

namespace kvfabric::kube {
namespace {

constexpr std::string_view kInvalidMark = " is invalid: ";
constexpr const char* kFieldConflictReason = "FieldManagerConflict";

struct ReasonRow {
  StatusCode code;
  int http;
  std::string_view reason;
};
// First row of a code is what we say; first row that fits is what we understand.
constexpr std::array<ReasonRow, 17> kReasons = {{
    {StatusCode::kAborted, 409, "Conflict"},
    {StatusCode::kAlreadyExists, 409, "AlreadyExists"},
    {StatusCode::kNotFound, 404, "NotFound"},
    {StatusCode::kOutOfRange, 410, "Expired"},
    {StatusCode::kOutOfRange, 410, "Gone"},
    {StatusCode::kInvalidArgument, 422, "Invalid"},
    {StatusCode::kInvalidArgument, 400, "BadRequest"},
    {StatusCode::kUnauthenticated, 401, "Unauthorized"},
    {StatusCode::kPermissionDenied, 403, "Forbidden"},
    {StatusCode::kUnimplemented, 405, "MethodNotAllowed"},
    {StatusCode::kUnimplemented, 415, "UnsupportedMediaType"},
    {StatusCode::kResourceExhausted, 413, "RequestEntityTooLarge"},
    {StatusCode::kUnavailable, 503, "ServiceUnavailable"},
    {StatusCode::kUnavailable, 429, "TooManyRequests"},
    {StatusCode::kDeadlineExceeded, 504, "Timeout"},
    {StatusCode::kInternal, 500, "InternalError"},
    {StatusCode::kUnavailable, 500, "ServerTimeout"},
}};

std::string Quoted(Kind kind, const ObjectName& name) {
  return std::string(TraitsOf(kind).name) + " \"" + name.ToString() + "\"";
}

// One line a cause: values that people wrote may hold line feeds.
std::string Lines(const std::vector<Cause>& causes) {
  std::string out;
  for (const Cause& cause : causes) {
    std::string line = cause.field + ": " + cause.message;
    std::replace(line.begin(), line.end(), '\n', ' ');
    out += "\n" + line;
  }
  return out;
}

}  // namespace

Status Invalid(Kind kind, const ObjectName& name, const std::vector<Cause>& causes) {
  std::string text = Quoted(kind, name);
  text.append(kInvalidMark).append(std::to_string(causes.size()));
  text += causes.size() == 1 ? " fault" : " faults";
  return InvalidArgument(text + Lines(causes));
}

Status FieldConflict(Kind kind, const ObjectName& name, const std::vector<Cause>& causes) {
  auto detail = std::make_shared<ApiDetail>();
  detail->cause_reasons.assign(causes.size(), kFieldConflictReason);
  return {StatusCode::kAborted,
          Quoted(kind, name) + ": apply: other managers own " + std::to_string(causes.size()) +
              (causes.size() == 1 ? " field" : " fields") +
              " of it; leave them out, give their values, or force" + Lines(causes),
          std::move(detail)};
}

std::vector<Cause> CausesOf(const Status& status) {
  std::vector<Cause> out;
  const std::string_view text = status.message();
  std::size_t at = text.find('\n');
  const bool invalid =
      IsInvalid(status) && text.substr(0, at).find(kInvalidMark) != std::string_view::npos;
  if (!invalid && !IsFieldConflict(status)) return out;
  while (at != std::string_view::npos) {
    const std::size_t end = text.find('\n', at + 1);
    const std::string_view line =
        text.substr(at + 1, end == std::string_view::npos ? end : end - at - 1);
    const std::size_t colon = line.find(": ");
    if (colon != std::string_view::npos) {
      out.push_back({std::string(line.substr(0, colon)), std::string(line.substr(colon + 2))});
    }
    at = end;
  }
  return out;
}

Status Conflict(Kind kind, const ObjectName& name, std::string_view why) {
  return Aborted(Quoted(kind, name) + ": write: " + std::string(why) +
                 "; read it again and repeat the change");
}

Status ObjectNotFound(Kind kind, const ObjectName& name) {
  return NotFound(Quoted(kind, name) + " not found");
}

Status ObjectExists(Kind kind, const ObjectName& name) {
  return AlreadyExists(Quoted(kind, name) + " already exists");
}

Status HttpFailure(StatusCode code, int http_code, std::string reason, std::string text) {
  auto detail = std::make_shared<ApiDetail>();
  detail->http_code = http_code;
  detail->reason = std::move(reason);
  return {code, std::move(text), std::move(detail)};
}

const ApiDetail* ApiDetailOf(const Status& status) {
  return dynamic_cast<const ApiDetail*>(status.detail());
}

std::optional<std::chrono::milliseconds> RetryAfterOf(const Status& status) {
  const ApiDetail* detail = ApiDetailOf(status);
  return detail == nullptr ? std::nullopt : detail->retry_after;
}

namespace {
bool HasCause(const Status& status, std::string_view reason) {
  const ApiDetail* detail = ApiDetailOf(status);
  return detail != nullptr && std::find(detail->cause_reasons.begin(), detail->cause_reasons.end(),
                                        reason) != detail->cause_reasons.end();
}
}  // namespace

bool IsResourceVersionTooLarge(const Status& status) {
  return HasCause(status, "ResourceVersionTooLarge");
}
bool IsFieldConflict(const Status& status) {
  return IsConflict(status) && HasCause(status, kFieldConflictReason);
}

HttpReason HttpReasonOf(const Status& status) {
  const ApiDetail* detail = ApiDetailOf(status);
  if (detail != nullptr && detail->http_code != 0) return {detail->http_code, detail->reason};
  // A request that names no object, or no readable one, is a bad request; an object with faults
  // is an invalid one.
  if (IsInvalid(status) && CausesOf(status).empty()) return {400, "BadRequest"};
  for (const ReasonRow& row : kReasons) {
    if (row.code == status.code()) return {row.http, row.reason};
  }
  return {500, "InternalError"};
}

StatusCode CodeOfHttp(int http_code, std::string_view reason) {
  for (const ReasonRow& row : kReasons) {
    if (row.reason == reason) return row.code;
  }
  for (const ReasonRow& row : kReasons) {
    if (row.http == http_code) return row.code;
  }
  return http_code >= 500 ? StatusCode::kUnavailable : StatusCode::kInternal;
}

}  // namespace kvfabric::kube
