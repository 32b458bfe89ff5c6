#include "operator/specs/crd_schema.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/check.h"
#include "operator/kube/json.h"
#include "operator/kube/yaml.h"
#include "operator/specs/crd_text.h"
#include "operator/specs/schema_check.h"
#include "operator/specs/schema_node.h"

namespace kvfabric {
namespace {

using kube::Cause;
using kube::Find;
using kube::Json;
using kube::Kind;

void CollectRules(const SchemaNode& node, const std::string& path, std::vector<std::string>* out) {
  for (const SchemaRule& rule : node.rules) out->push_back(path + ": " + rule.text);
  for (const auto& [name, child] : node.properties) CollectRules(*child, path + "." + name, out);
  if (node.items != nullptr) CollectRules(*node.items, path + "[]", out);
  if (node.additional != nullptr) CollectRules(*node.additional, path + ".*", out);
}

void CollectLists(const SchemaNode& node, const std::string& path,
                  std::vector<kube::ListRule>* out) {
  const std::string dot = path.empty() ? "" : path + ".";
  for (const auto& [name, child] : node.properties) CollectLists(*child, dot + name, out);
  if (node.additional != nullptr) CollectLists(*node.additional, dot + "*", out);
  if (node.type != SchemaType::kArray) return;
  if (node.list_type == ListType::kSet) out->push_back({path, kube::ListMerge::kSet, {}});
  if (node.list_type == ListType::kMap) {
    out->push_back({path, kube::ListMerge::kMap, {node.map_key}});
  }
  if (node.items != nullptr) CollectLists(*node.items, path + "[]", out);
}

std::unique_ptr<CrdSchema> ParseOwn(std::string_view text) {
  Result<std::unique_ptr<CrdSchema>> schema = CrdSchema::Parse(text);
  KVF_CHECK(schema.ok(), schema.status().message().c_str());  // our own file: a test reads it too
  return std::move(schema).value();
}

}  // namespace

CrdSchema::CrdSchema(std::unique_ptr<SchemaNode> root) : root_(std::move(root)) {}
CrdSchema::~CrdSchema() = default;

const CrdSchema& CrdSchema::Of(Kind kind) {
  static const std::unique_ptr<CrdSchema> pool = ParseOwn(kPoolCrdText);
  static const std::unique_ptr<CrdSchema> shard_map = ParseOwn(kShardMapCrdText);
  KVF_CHECK(kind == Kind::kPool || kind == Kind::kShardMap, "kind without a schema of ours");
  return kind == Kind::kPool ? *pool : *shard_map;
}

namespace {
// The text of openAPIV3Schema.
Result<std::string> SchemaTextOf(std::string_view yaml) {
  KVF_ASSIGN_OR_RETURN(const std::vector<std::string> documents, kube::YamlToJson(yaml));
  if (documents.size() != 1) return InvalidArgument("crd: not one document");
  KVF_ASSIGN_OR_RETURN(const Json crd, kube::ParseJson(documents.front()));
  const Json* spec = Find(crd, "spec");
  const Json* versions = spec == nullptr ? nullptr : Find(*spec, "versions");
  if (versions == nullptr || !versions->is_array() || versions->size() != 1) {
    return InvalidArgument("crd: spec.versions: not one version");
  }
  const Json* schema = Find((*versions)[0], "schema");
  const Json* open_api = schema == nullptr ? nullptr : Find(*schema, "openAPIV3Schema");
  if (open_api == nullptr) return InvalidArgument("crd: no openAPIV3Schema");
  return open_api->dump();
}
}  // namespace

Result<std::unique_ptr<CrdSchema>> CrdSchema::Parse(std::string_view yaml) {
  KVF_ASSIGN_OR_RETURN(const std::string text, SchemaTextOf(yaml));
  KVF_ASSIGN_OR_RETURN(std::unique_ptr<SchemaNode> root, ParseSchema(text));
  return std::unique_ptr<CrdSchema>(new CrdSchema(std::move(root)));
}

Result<std::string> CrdSchema::Check(std::string_view json, const std::string* old_json,
                                     std::vector<Cause>* faults) const {
  KVF_ASSIGN_OR_RETURN(Json value, kube::ParseJson(json));
  Json old;
  if (old_json != nullptr) {
    KVF_ASSIGN_OR_RETURN(old, kube::ParseJson(*old_json));
  }
  Normalize(*root_, value);
  CheckValue(*root_, value, old_json == nullptr ? nullptr : &old, faults);
  return kube::DumpJson(value);
}

std::vector<std::string> CrdSchema::rules() const {
  std::vector<std::string> out;
  CollectRules(*root_, "", &out);
  return out;
}

std::string CrdOpenApi(Kind kind) {
  if (kind != Kind::kPool && kind != Kind::kShardMap) return "";
  return SchemaTextOf(kind == Kind::kPool ? kPoolCrdText : kShardMapCrdText).value_or("");
}

std::vector<kube::ListRule> CrdSchema::list_rules() const {
  std::vector<kube::ListRule> out;
  CollectLists(*root_, "", &out);
  return out;
}

std::vector<kube::ListRule> CrdAdmission::ListRules(Kind kind) const {
  if (kind != Kind::kPool && kind != Kind::kShardMap) return {};
  return CrdSchema::Of(kind).list_rules();
}

Result<std::string> CrdAdmission::Admit(Kind kind, const std::string& json,
                                        const std::string* old_json) const {
  if (kind != Kind::kPool && kind != Kind::kShardMap) return json;
  std::vector<Cause> faults;
  KVF_ASSIGN_OR_RETURN(std::string admitted, CrdSchema::Of(kind).Check(json, old_json, &faults));
  if (faults.empty()) return admitted;
  KVF_ASSIGN_OR_RETURN(const kube::Object object, kube::ParseObject(kind, json));
  return kube::Invalid(kind, object.meta.name, faults);
}

}  // namespace kvfabric
