#include "operator/kube/openapi_doc.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "operator/kube/api_path.h"
#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr std::string_view kRoot = "/openapi/v3";
constexpr const char* kGvk = "x-kubernetes-group-version-kind";

std::string GroupPath(const KindTraits& traits) {
  return (traits.group.empty() ? "api/" : "apis/") + ApiVersionOf(traits.kind);
}

Json GvkOf(const KindTraits& traits) {
  return {{"group", traits.group}, {"version", traits.version}, {"kind", traits.name}};
}

std::string SchemaName(const KindTraits& traits) {
  return (traits.group.empty() ? "core" : std::string(traits.group)) + "." +
         std::string(traits.version) + "." + std::string(traits.name);
}

Json SchemaOf(const KindTraits& traits, const SchemaText& schema) {
  const std::string text = schema == nullptr ? "" : schema(traits.kind);
  Json out = text.empty() ? Json(nullptr) : Json::parse(text, nullptr, false);
  if (!out.is_object()) {
    out = {{"type", "object"},
           {"description", "Its fields are not described by a local fabric."},
           {"x-kubernetes-preserve-unknown-fields", true}};
  }
  out[kGvk] = Json::array({GvkOf(traits)});
  return out;
}

Json Parameter(const char* name, const char* type, const char* description) {
  return {{"name", name},
          {"in", "query"},
          {"description", description},
          {"schema", {{"type", type}, {"uniqueItems", true}}}};
}

// kubectl looks here whether a parameter is obeyed.
Json WriteOperation(const KindTraits& traits, const char* action) {
  return {
      {"x-kubernetes-action", action},
      {kGvk, GvkOf(traits)},
      {"parameters",
       {Parameter("dryRun", "string", "All: answer what would be stored, store nothing"),
        Parameter("fieldManager", "string", "who owns what the write changes"),
        Parameter("fieldValidation", "string", "unknown fields of our kinds are always refused"),
        Parameter("force", "boolean", "of an apply: take fields from other managers")}},
      {"responses", {{"200", {{"description", "OK"}}}}}};
}

Json ReadOperation(const KindTraits& traits, const char* action) {
  return {{"x-kubernetes-action", action},
          {kGvk, GvkOf(traits)},
          {"responses", {{"200", {{"description", "OK"}}}}}};
}

void AddPaths(const KindTraits& traits, Json& paths) {
  std::string collection = "/" + GroupPath(traits) + "/";
  if (traits.namespaced) collection += "namespaces/{namespace}/";
  collection += traits.plural;
  paths[collection] = {{"get", ReadOperation(traits, "list")},
                       {"post", WriteOperation(traits, "post")}};
  paths[collection + "/{name}"] = {{"get", ReadOperation(traits, "get")},
                                   {"put", WriteOperation(traits, "put")},
                                   {"patch", WriteOperation(traits, "patch")},
                                   {"delete", ReadOperation(traits, "delete")}};
}

std::string DocumentOf(std::string_view group_path, std::string_view version,
                       const SchemaText& schema) {
  Json paths = Json::object();
  Json schemas = Json::object();
  for (const KindTraits& traits : AllKinds()) {
    if (GroupPath(traits) != group_path) continue;
    AddPaths(traits, paths);
    schemas[SchemaName(traits)] = SchemaOf(traits, schema);
  }
  if (paths.empty()) return "";
  return DumpJson({{"openapi", "3.0.0"},
                   {"info", {{"title", "kvfabric local fabric"}, {"version", version}}},
                   {"paths", std::move(paths)},
                   {"components", {{"schemas", std::move(schemas)}}}});
}

// Clients keep a document as long as its address stays the same.
std::string HashOf(std::string_view text) {
  std::uint64_t hash = 14'695'981'039'346'656'037U;  // FNV-1a
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1'099'511'628'211U;
  }
  return std::to_string(hash);
}

}  // namespace

std::string OpenApiBody(std::string_view path, std::string_view version, const SchemaText& schema) {
  if (path.substr(0, kRoot.size()) != kRoot) return "";
  if (path.size() > kRoot.size()) return DocumentOf(path.substr(kRoot.size() + 1), version, schema);
  Json index = Json::object();
  for (const KindTraits& traits : AllKinds()) {
    const std::string group = GroupPath(traits);
    if (index.contains(group)) continue;
    std::string address(kRoot);
    address += "/" + group + "?hash=" + HashOf(DocumentOf(group, version, schema));
    index[group] = {{"serverRelativeURL", std::move(address)}};
  }
  return DumpJson({{"paths", std::move(index)}});
}

}  // namespace kvfabric::kube
