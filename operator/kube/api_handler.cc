#include "operator/kube/api_handler.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "operator/kube/api_error.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/json.h"
#include "operator/kube/yaml.h"

namespace kvfabric::kube {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kApplyYaml = "application/apply-patch+yaml";

// Takes as long for a wrong token as for the right one.
bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const unsigned left = static_cast<unsigned char>(a[i]);
    const unsigned right = static_cast<unsigned char>(b[i]);
    difference |= left ^ right;
  }
  return difference == 0;
}

Status Authenticate(const Tokens& tokens, const std::string& authorization) {
  const bool bearer = authorization.compare(0, kBearer.size(), kBearer) == 0;
  const std::string_view token =
      bearer ? std::string_view(authorization).substr(kBearer.size()) : std::string_view();
  std::string tenant;
  for (const auto& [name, secret] : tokens) {
    if (!token.empty() && SameSecret(secret, token)) tenant = name;
  }
  if (tenant.empty()) return Unauthenticated("Unauthorized: give the bearer token of admin");
  if (tenant != "admin") {
    return PermissionDenied("the token of tenant " + tenant + " reads and writes blocks only");
  }
  return Status::Ok();
}

struct DeleteOptions {
  Preconditions preconditions;
  bool dry_run = false;
};
Result<DeleteOptions> ReadDeleteOptions(const std::string& body) {
  DeleteOptions out;
  if (body.empty()) return out;
  KVF_ASSIGN_OR_RETURN(const Json root, ParseJson(body));
  if (const Json* dry_run = Find(root, "dryRun")) {
    out.dry_run = dry_run->is_array() && !dry_run->empty();
    if (out.dry_run && *dry_run != Json::array({"All"})) {
      return InvalidArgument("dryRun: must be All");
    }
  }
  const Json* wanted = Find(root, "preconditions");
  if (wanted == nullptr) return out;
  out.preconditions.uid = StringAt(*wanted, "uid");
  const std::string version = StringAt(*wanted, "resourceVersion");
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(),
                                            out.preconditions.resource_version);
  if (!version.empty() && (error != std::errc() || end != version.data() + version.size())) {
    return InvalidArgument("preconditions.resourceVersion: not a number");
  }
  return out;
}

// The object of a request's body; kind and names it leaves out come from the path.
Result<std::string> ObjectOfBody(const ApiPath& path, const std::string& body) {
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(body));
  if (!root.is_object()) return InvalidArgument("body: must be an object");
  Json& metadata = root["metadata"];
  if (metadata.is_null()) metadata = Json::object();
  if (!metadata.is_object()) return InvalidArgument("metadata: must be an object");
  const auto agree = [&](const char* key, const std::string& wanted) {
    const std::string given = StringAt(metadata, key);
    if (given.empty() && !wanted.empty()) metadata[key] = wanted;
    return wanted.empty() || given.empty() || given == wanted;
  };
  if (!agree("namespace", path.ns) || !agree("name", path.name)) {
    return InvalidArgument("metadata: names another object than the path");
  }
  return DumpJson(root);
}

// Apply takes YAML, of which JSON is a part.
Result<std::string> JsonOfYaml(const std::string& body) {
  if (ParseJson(body).ok()) return body;
  KVF_ASSIGN_OR_RETURN(std::vector<std::string> documents, YamlToJson(body));
  if (documents.size() != 1) return InvalidArgument("body: must be one object");
  return std::move(documents.front());
}

std::string MediaTypeOf(const ApiRequest& request) {
  std::string type = request.content_type.substr(0, request.content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type;
}

Status UnknownFormat(const std::string& type, const char* accepted) {
  return HttpFailure(StatusCode::kUnimplemented, 415, "UnsupportedMediaType",
                     "the body of the request was in an unknown format (" + type +
                         ") - accepted media types include: " + accepted);
}

Status CheckBodyIsJson(const ApiRequest& request) {
  const std::string type = MediaTypeOf(request);
  if (type.empty() || type == "application/json") return Status::Ok();
  return UnknownFormat(type, "application/json");
}

Status NotServed(const ApiRequest& request, const char* instead) {
  return Unimplemented(request.method + " " + request.path + ": not served by a local fabric; " +
                       instead);
}

bool IsOurs(Kind kind) { return TraitsOf(kind).group == "kvfabric.io"; }

}  // namespace

ApiAnswer ApiHandler::Failure(const Status& status) {
  ApiAnswer answer;
  answer.status = HttpReasonOf(status).code;
  answer.body = StatusBody(status);
  if (const auto wait = RetryAfterOf(status)) {
    answer.retry_after_s = std::chrono::duration_cast<std::chrono::seconds>(*wait).count();
  }
  return answer;
}

ApiAnswer ApiHandler::Serve(const ApiRequest& request) const {
  if (request.path == "/livez" || request.path == "/readyz" || request.path == "/healthz") {
    ApiAnswer answer;
    answer.content_type = "text/plain";
    answer.body = "ok";
    return answer;
  }
  Result<ApiAnswer> answer = Authenticated(request);
  return answer.ok() ? std::move(answer).value() : Failure(answer.status());
}

Result<ApiAnswer> ApiHandler::Authenticated(const ApiRequest& request) const {
  KVF_RETURN_IF_ERROR(Authenticate(options_.tokens, request.authorization));
  if (request.method == "GET") {
    ApiAnswer answer;
    answer.body = DiscoveryBody(request.path, options_.version);
    if (answer.body.empty()) {
      answer.body = OpenApiBody(request.path, options_.version, options_.schema);
    }
    if (!answer.body.empty()) {
      KVF_RETURN_IF_ERROR(ReadAccept(request.accept, false).status());
      return answer;
    }
  }
  const std::optional<ApiPath> path = ParseApiPath(request.path);
  if (!path.has_value()) return NotFound("the server has no resource at " + request.path);
  return path->name.empty() ? Collection(*path, request) : Item(*path, request);
}

Result<ApiAnswer> ApiHandler::Answer(const ApiRequest& request,
                                     const Result<ObjectPtr>& object) const {
  if (!object.ok()) return object.status();
  KVF_ASSIGN_OR_RETURN(const AnswerForm form,
                       ReadAccept(request.accept, options_.table != nullptr));
  ApiAnswer answer;
  answer.body = form == AnswerForm::kTable
                    ? options_.table((*object)->kind, {(*object)->meta.resource_version, {*object}})
                    : (*object)->json;
  return answer;
}

Result<ApiAnswer> ApiHandler::Collection(const ApiPath& path, const ApiRequest& request) const {
  if (request.method == "GET") return List(path, request);
  if (request.method == "POST") {
    KVF_RETURN_IF_ERROR(CheckBodyIsJson(request));
    KVF_ASSIGN_OR_RETURN(const WriteOptions options, ReadWriteOptions(request));
    KVF_ASSIGN_OR_RETURN(const std::string json, ObjectOfBody(path, request.body));
    KVF_ASSIGN_OR_RETURN(ApiAnswer answer, Answer(request, api_.Create(path.kind, json, options)));
    answer.status = 201;
    return answer;
  }
  if (request.method == "DELETE") return NotServed(request, "delete objects by their names");
  return NotServed(request, "name an object");
}

Result<ApiAnswer> ApiHandler::List(const ApiPath& path, const ApiRequest& request) const {
  KVF_ASSIGN_OR_RETURN(const AnswerForm form,
                       ReadAccept(request.accept, options_.table != nullptr));
  ApiAnswer answer;
  if (WantsWatch(request)) {
    KVF_ASSIGN_OR_RETURN(answer.watch, ReadWatchParameters(path, request));
    answer.watch->form = form;
    return answer;
  }
  KVF_ASSIGN_OR_RETURN(const ListParameters wanted, ReadListParameters(path, request));
  KVF_ASSIGN_OR_RETURN(const auto stream,
                       api_.StartList(path.kind, wanted.scope, wanted.not_older_than, nullptr));
  KVF_ASSIGN_OR_RETURN(ListBatch batch, stream->Poll());
  if (wanted.exact && batch.resource_version != wanted.not_older_than) {
    return Status(StatusCode::kOutOfRange,
                  "resourceVersion: only the current version can be listed exactly");
  }
  const ObjectList list{batch.resource_version, std::move(batch.items)};
  answer.body =
      form == AnswerForm::kTable ? options_.table(path.kind, list) : ListBody(path.kind, list);
  return answer;
}

Result<ApiAnswer> ApiHandler::Item(const ApiPath& path, const ApiRequest& request) const {
  if (request.method == "GET") {
    return Answer(request, api_.Get(path.kind, {path.ns, path.name}));
  }
  if (request.method == "PUT") {
    KVF_RETURN_IF_ERROR(CheckBodyIsJson(request));
    KVF_ASSIGN_OR_RETURN(const WriteOptions options, ReadWriteOptions(request));
    KVF_ASSIGN_OR_RETURN(const std::string json, ObjectOfBody(path, request.body));
    return Answer(request, api_.Replace(path.kind, json, path.status, options));
  }
  if (request.method == "PATCH") {
    return MediaTypeOf(request) == kApplyYaml ? Apply(path, request) : Patch(path, request);
  }
  if (request.method == "DELETE" && !path.status) return Delete(path, request);
  return NotServed(request, "get, put, patch or delete it");
}

Result<ApiAnswer> ApiHandler::Patch(const ApiPath& path, const ApiRequest& request) const {
  const std::string type = MediaTypeOf(request);
  EmbeddedKubeApi::PatchRequest patch;
  if (type == "application/merge-patch+json") {
    patch.format = PatchFormat::kMerge;
  } else if (type == "application/json-patch+json") {
    patch.format = PatchFormat::kJson;
  } else if (type == "application/strategic-merge-patch+json" && !IsOurs(path.kind)) {
    patch.format = PatchFormat::kStrategic;
  } else {
    return UnknownFormat(type,
                         "application/json-patch+json, application/merge-patch+json, "
                         "application/apply-patch+yaml");
  }
  if (!request.Parameter("force").empty()) return InvalidArgument("force: only of an apply");
  patch.text = request.body;
  patch.status = path.status;
  KVF_ASSIGN_OR_RETURN(const WriteOptions options, ReadWriteOptions(request));
  return Answer(request, api_.Patch(path.kind, {path.ns, path.name}, patch, options));
}

Result<ApiAnswer> ApiHandler::Apply(const ApiPath& path, const ApiRequest& request) const {
  KVF_ASSIGN_OR_RETURN(const WriteOptions options, ReadWriteOptions(request));
  ApplyOptions apply;
  apply.field_manager = request.Parameter("fieldManager");
  KVF_ASSIGN_OR_RETURN(apply.force, ReadFlag(request, "force"));
  apply.status = path.status;
  KVF_ASSIGN_OR_RETURN(const std::string json, JsonOfYaml(request.body));
  KVF_ASSIGN_OR_RETURN(const std::string object, ObjectOfBody(path, json));
  const bool there = api_.Get(path.kind, {path.ns, path.name}).ok();
  KVF_ASSIGN_OR_RETURN(ApiAnswer answer,
                       Answer(request, api_.Apply(path.kind, object, apply, options.dry_run)));
  if (!there) answer.status = 201;
  return answer;
}

Result<ApiAnswer> ApiHandler::Delete(const ApiPath& path, const ApiRequest& request) const {
  KVF_ASSIGN_OR_RETURN(const WriteOptions options, ReadWriteOptions(request));
  KVF_ASSIGN_OR_RETURN(const DeleteOptions wanted, ReadDeleteOptions(request.body));
  const ObjectName name{path.ns, path.name};
  KVF_ASSIGN_OR_RETURN(const ObjectPtr object, api_.Get(path.kind, name));
  // The one that was read: kubectl waits for this very object to be gone.
  Preconditions preconditions = wanted.preconditions;
  if (preconditions.uid.empty()) preconditions.uid = object->meta.uid;
  KVF_RETURN_IF_ERROR(
      api_.Delete(path.kind, name, preconditions, options.dry_run || wanted.dry_run));
  ApiAnswer answer;
  answer.body = DeletedBody(path.kind, name, object->meta.uid);
  return answer;
}

}  // namespace kvfabric::kube
