#pragma once

// The API's errors in our Status codes, one to one, and the causes of an invalid object.
//
//   Conflict       kAborted             the object changed since it was read: read again
//   NotFound       kNotFound
//   AlreadyExists  kAlreadyExists
//   Gone, Expired  kOutOfRange          the resourceVersion is too old: list again
//   Invalid        kInvalidArgument     CausesOf says what to change
//   Unauthorized   kUnauthenticated
//   Forbidden      kPermissionDenied
//   others         kUnavailable, kInternal, kDeadlineExceeded, kUnimplemented

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {

inline bool IsConflict(const Status& status) { return status.code() == StatusCode::kAborted; }
inline bool IsNotFound(const Status& status) { return status.code() == StatusCode::kNotFound; }
inline bool IsAlreadyExists(const Status& status) {
  return status.code() == StatusCode::kAlreadyExists;
}
inline bool IsGone(const Status& status) { return status.code() == StatusCode::kOutOfRange; }
inline bool IsInvalid(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument;
}

// One fault of an object: `spec.tiers[0].type` and a text that says what to write instead.
struct Cause {
  std::string field;
  std::string message;
  bool operator==(const Cause&) const = default;
};

// `KVCachePool "a/b" is invalid: 2 faults` and one line `field: message` for each.
Status Invalid(Kind kind, const ObjectName& name, const std::vector<Cause>& causes);
// The causes of a Status made by Invalid or FieldConflict; empty for any other.
std::vector<Cause> CausesOf(const Status& status);

Status Conflict(Kind kind, const ObjectName& name, std::string_view why);
// Other managers own fields that an Apply without force would change: a Conflict with a cause for
// each, the field and whose it is.
Status FieldConflict(Kind kind, const ObjectName& name, const std::vector<Cause>& causes);
Status ObjectNotFound(Kind kind, const ObjectName& name);
Status ObjectExists(Kind kind, const ObjectName& name);

// What an answer over HTTP says beyond code and text; carried by the Status of that answer.
struct ApiDetail final : StatusDetail {
  int http_code = 0;                       // 0 = no answer came
  std::string reason;                      // of a Status object: Conflict, Expired, ...
  std::vector<std::string> cause_reasons;  // details.causes[].reason
  std::optional<std::chrono::milliseconds> retry_after;
};
// A failure that HTTP tells apart further than our codes do: 406, 415, 429.
Status HttpFailure(StatusCode code, int http_code, std::string reason, std::string text);
// Null when the status neither came over HTTP nor was made for it.
const ApiDetail* ApiDetailOf(const Status& status);
// How long the API asks to wait before the next try.
std::optional<std::chrono::milliseconds> RetryAfterOf(const Status& status);
// A replica that has not seen the asked-for resourceVersion yet.
bool IsResourceVersionTooLarge(const Status& status);
// Of a Conflict: another manager owns a field (server-side apply), not a stale resourceVersion.
bool IsFieldConflict(const Status& status);

// What the API says over HTTP: the status code, and the `reason` of a Status object, which lives
// as long as the status.
struct HttpReason {
  int code = 500;
  std::string_view reason;
};
HttpReason HttpReasonOf(const Status& status);
// The other way; `reason` may be empty.
StatusCode CodeOfHttp(int http_code, std::string_view reason);

}  // namespace kvfabric::kube
