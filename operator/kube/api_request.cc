#include "operator/kube/api_request.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "operator/kube/api_error.h"

namespace kvfabric::kube {
namespace {

constexpr std::uint64_t kMaxTimeoutSeconds = 24 * 3600;
constexpr const char* kUnknownManager = "unknown";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const std::size_t at = text.find(separator);
    out.push_back(Trim(text.substr(0, at)));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

// One alternative of an Accept header.
std::optional<AnswerForm> FormOf(std::string_view alternative, bool table_is_served) {
  const std::vector<std::string_view> parts = Split(alternative, ';');
  if (parts[0] != "application/json" && parts[0] != "application/*" && parts[0] != "*/*") {
    return std::nullopt;
  }
  std::string_view as;
  std::string_view version = "v1";
  for (const std::string_view part : parts) {
    if (part.substr(0, 3) == "as=") as = part.substr(3);
    if (part.substr(0, 2) == "v=") version = part.substr(2);
  }
  if (as.empty()) return AnswerForm::kJson;
  if (as == "Table" && version == "v1" && table_is_served) return AnswerForm::kTable;
  return std::nullopt;
}

Result<std::uint64_t> ReadNumber(const ApiRequest& request, const std::string& name) {
  const std::string text = request.Parameter(name);
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument(name + ": \"" + text + "\": must be a number");
  }
  return out;
}

Scope ScopeOf(const ApiPath& path, const ApiRequest& request) {
  return {path.ns, request.Parameter("labelSelector"), request.Parameter("fieldSelector")};
}

}  // namespace

std::string ApiRequest::Parameter(const std::string& name) const {
  const auto it = query.find(name);
  return it == query.end() ? std::string() : it->second;
}

Result<AnswerForm> ReadAccept(std::string_view accept, bool table_is_served) {
  if (Trim(accept).empty()) return AnswerForm::kJson;
  for (const std::string_view alternative : Split(accept, ',')) {
    if (const auto form = FormOf(alternative, table_is_served)) return *form;
  }
  return HttpFailure(StatusCode::kUnimplemented, 406, "NotAcceptable",
                     "only the following media types are accepted: application/json");
}

Result<bool> ReadFlag(const ApiRequest& request, const std::string& name) {
  const std::string text = request.Parameter(name);
  if (text.empty() || text == "false" || text == "0") return false;
  if (text == "true" || text == "1") return true;
  return InvalidArgument(name + ": \"" + text + "\": must be true or false");
}

Result<ListParameters> ReadListParameters(const ApiPath& path, const ApiRequest& request) {
  ListParameters out;
  out.scope = ScopeOf(path, request);
  if (!request.Parameter("continue").empty()) {
    return Status(StatusCode::kOutOfRange, "continue: lists are given whole; list again");
  }
  if (!request.Parameter("sendInitialEvents").empty()) {
    return InvalidArgument("sendInitialEvents: only of a watch");
  }
  const std::string match = request.Parameter("resourceVersionMatch");
  if (request.Parameter("resourceVersion").empty()) {
    if (!match.empty()) return InvalidArgument("resourceVersionMatch: needs a resourceVersion");
    return out;
  }
  KVF_ASSIGN_OR_RETURN(out.not_older_than, ReadNumber(request, "resourceVersion"));
  if (match != "" && match != "NotOlderThan" && match != "Exact") {
    return InvalidArgument("resourceVersionMatch: must be Exact or NotOlderThan");
  }
  out.exact = match == "Exact";
  return out;
}

bool WantsWatch(const ApiRequest& request) {
  const Result<bool> watch = ReadFlag(request, "watch");
  return watch.ok() && *watch;
}

Result<WatchParameters> ReadWatchParameters(const ApiPath& path, const ApiRequest& request) {
  WatchParameters out;
  out.kind = path.kind;
  out.scope = ScopeOf(path, request);
  KVF_ASSIGN_OR_RETURN(out.bookmarks, ReadFlag(request, "allowWatchBookmarks"));
  if (!request.Parameter("resourceVersion").empty()) {
    KVF_ASSIGN_OR_RETURN(out.from.resource_version, ReadNumber(request, "resourceVersion"));
  }
  if (!request.Parameter("timeoutSeconds").empty()) {
    KVF_ASSIGN_OR_RETURN(const std::uint64_t seconds, ReadNumber(request, "timeoutSeconds"));
    if (seconds > 0) out.timeout = std::chrono::seconds(std::min(seconds, kMaxTimeoutSeconds));
  }
  const std::string match = request.Parameter("resourceVersionMatch");
  KVF_ASSIGN_OR_RETURN(out.initial_end, ReadFlag(request, "sendInitialEvents"));
  if (out.initial_end && match != "NotOlderThan") {
    return InvalidArgument("sendInitialEvents: needs resourceVersionMatch=NotOlderThan");
  }
  if (out.initial_end && !out.bookmarks) {
    return InvalidArgument("sendInitialEvents: needs allowWatchBookmarks=true");
  }
  if (!match.empty() && request.Parameter("sendInitialEvents").empty()) {
    return InvalidArgument("resourceVersionMatch: only with sendInitialEvents in a watch");
  }
  // Without a version to start from the watch begins with what is there.
  const bool asked_not_to = !request.Parameter("sendInitialEvents").empty() && !out.initial_end;
  out.from.initial_events = out.initial_end || (out.from.resource_version == 0 && !asked_not_to);
  return out;
}

Result<WriteOptions> ReadWriteOptions(const ApiRequest& request) {
  WriteOptions out;
  const auto [first, last] = request.query.equal_range("dryRun");
  for (auto it = first; it != last; ++it) {
    if (it->second != "All") return InvalidArgument("dryRun: must be All");
    out.dry_run = true;
  }
  const std::string validation = request.Parameter("fieldValidation");
  if (validation != "" && validation != "Ignore" && validation != "Warn" &&
      validation != "Strict") {
    return InvalidArgument("fieldValidation: must be Ignore, Warn or Strict");
  }
  out.field_manager = request.Parameter("fieldManager");
  if (out.field_manager.empty()) {
    out.field_manager = request.user_agent.substr(0, request.user_agent.find('/'));
  }
  if (out.field_manager.empty()) out.field_manager = kUnknownManager;
  if (out.field_manager.size() > 128) {
    return InvalidArgument("fieldManager: must have at most 128 bytes");
  }
  return out;
}

}  // namespace kvfabric::kube
