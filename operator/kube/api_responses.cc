#include "operator/kube/api_responses.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr std::uint64_t kMaxRetryAfterSeconds = 3600;

Json ResourceOf(const KindTraits& traits) {
  Json out = {{"name", traits.plural},
              {"singularName", ""},
              {"namespaced", traits.namespaced},
              {"kind", traits.name},
              {"verbs", {"create", "delete", "get", "list", "patch", "update", "watch"}}};
  if (!traits.short_name.empty()) out["shortNames"] = {traits.short_name};
  if (traits.group == "kvfabric.io") out["categories"] = {"kvfabric"};
  return out;
}

std::string ResourceListBody(std::string_view group_version) {
  Json resources = Json::array();
  for (const KindTraits& traits : AllKinds()) {
    if (ApiVersionOf(traits.kind) != group_version) continue;
    resources.push_back(ResourceOf(traits));
    if (traits.has_status) {
      Json status = ResourceOf(traits);
      status["name"] = std::string(traits.plural) + "/status";
      status["verbs"] = {"get", "patch", "update"};
      status.erase("shortNames");
      status.erase("categories");
      resources.push_back(std::move(status));
    }
  }
  if (resources.empty()) return "";
  return Json{{"kind", "APIResourceList"},
              {"apiVersion", "v1"},
              {"groupVersion", group_version},
              {"resources", resources}}
      .dump();
}

Json GroupOf(const KindTraits& traits) {
  const Json version = {{"groupVersion", ApiVersionOf(traits.kind)}, {"version", traits.version}};
  return {
      {"name", traits.group}, {"versions", Json::array({version})}, {"preferredVersion", version}};
}

std::string GroupListBody() {
  Json groups = Json::array();
  std::set<std::string_view> seen;
  for (const KindTraits& traits : AllKinds()) {
    if (!traits.group.empty() && seen.insert(traits.group).second) {
      groups.push_back(GroupOf(traits));
    }
  }
  return Json{{"kind", "APIGroupList"}, {"apiVersion", "v1"}, {"groups", groups}}.dump();
}

std::string GroupBody(std::string_view group) {
  for (const KindTraits& traits : AllKinds()) {
    if (traits.group.empty() || traits.group != group) continue;
    Json body = GroupOf(traits);
    body["kind"] = "APIGroup";
    body["apiVersion"] = "v1";
    return body.dump();
  }
  return "";
}

}  // namespace

std::string StatusBody(const Status& status) {
  const HttpReason reason = HttpReasonOf(status);
  Json body = {{"kind", "Status"},    {"apiVersion", "v1"},          {"metadata", Json::object()},
               {"status", "Failure"}, {"message", status.message()}, {"reason", reason.reason},
               {"code", reason.code}};
  const std::vector<Cause> causes = CausesOf(status);
  Json list = Json::array();
  if (IsResourceVersionTooLarge(status)) {
    list.push_back({{"reason", "ResourceVersionTooLarge"}, {"message", status.message()}});
  }
  if (!causes.empty()) {
    const char* cause_reason =
        IsFieldConflict(status) ? "FieldManagerConflict" : "FieldValueInvalid";
    for (const Cause& cause : causes) {
      list.push_back(
          {{"reason", cause_reason}, {"message", cause.message}, {"field", cause.field}});
    }
  }
  if (!list.empty()) body["details"]["causes"] = std::move(list);
  if (const auto wait = RetryAfterOf(status)) {
    body["details"]["retryAfterSeconds"] =
        std::chrono::duration_cast<std::chrono::seconds>(*wait).count();
  }
  return DumpJson(body);
}

std::string DeletedBody(Kind kind, const ObjectName& name, const std::string& uid) {
  return Json{{"kind", "Status"},
              {"apiVersion", "v1"},
              {"metadata", Json::object()},
              {"status", "Success"},
              {"details",
               {{"name", name.name},
                {"group", TraitsOf(kind).group},
                {"kind", TraitsOf(kind).plural},
                {"uid", uid}}}}
      .dump();
}

std::string ListBody(Kind kind, const ObjectList& list) {
  std::string out = R"({"kind":")" + std::string(TraitsOf(kind).name) + R"(List","apiVersion":")" +
                    ApiVersionOf(kind) + R"(","metadata":{"resourceVersion":")" +
                    std::to_string(list.resource_version) + R"("},"items":[)";
  bool first = true;
  for (const ObjectPtr& object : list.items) {
    if (!first) out += ',';
    first = false;
    out += object->json;
  }
  return out + "]}";
}

std::string DiscoveryBody(std::string_view path, std::string_view version) {
  if (path == "/version") {
    return Json{{"major", "1"},
                {"minor", "34"},
                {"gitVersion", "v1.34.0+kvfabric-" + std::string(version)},
                {"platform", "linux/amd64"}}
        .dump();
  }
  if (path == "/api") {
    return Json{{"kind", "APIVersions"}, {"versions", {"v1"}}}.dump();
  }
  if (path == "/apis") return GroupListBody();
  if (path == "/api/v1") return ResourceListBody("v1");
  constexpr std::string_view kGroups = "/apis/";
  if (path.substr(0, kGroups.size()) != kGroups) return "";
  const std::string_view rest = path.substr(kGroups.size());
  return rest.find('/') == std::string_view::npos ? GroupBody(rest) : ResourceListBody(rest);
}

Status StatusOfAnswer(int http_code, std::string_view body,
                      std::optional<std::chrono::milliseconds> retry_after) {
  if (http_code >= 200 && http_code < 300) return Status::Ok();
  auto detail = std::make_shared<ApiDetail>();
  detail->http_code = http_code;
  detail->retry_after = retry_after;
  const Result<Json> parsed = ParseJson(body);
  if (!parsed.ok() || StringAt(*parsed, "kind") != "Status") {
    return {CodeOfHttp(http_code, ""),
            "api: answered " + std::to_string(http_code) + ": " + std::string(body.substr(0, 200)),
            std::move(detail)};
  }
  detail->reason = StringAt(*parsed, "reason");
  std::string message = StringAt(*parsed, "message");
  const Json* details = Find(*parsed, "details");
  const Json* causes = details == nullptr ? nullptr : Find(*details, "causes");
  if (causes != nullptr && causes->is_array()) {
    // Other API servers put all causes on one line.
    const bool one_line = message.find('\n') == std::string::npos;
    for (const Json& cause : *causes) {
      detail->cause_reasons.push_back(StringAt(cause, "reason"));
      if (one_line) message += "\n" + StringAt(cause, "field") + ": " + StringAt(cause, "message");
    }
  }
  const Json* seconds = details == nullptr ? nullptr : Find(*details, "retryAfterSeconds");
  if (!retry_after.has_value() && seconds != nullptr && seconds->is_number_unsigned()) {
    detail->retry_after = std::chrono::seconds(
        std::min<std::uint64_t>(seconds->get<std::uint64_t>(), kMaxRetryAfterSeconds));
  }
  const StatusCode code = CodeOfHttp(http_code, detail->reason);
  return {code, std::move(message), std::move(detail)};
}

}  // namespace kvfabric::kube
