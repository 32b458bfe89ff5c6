#include "operator/specs/schema_node.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "operator/kube/json.h"

namespace kvfabric {
namespace {

using kube::Find;
using kube::Json;
using kube::StringAt;

// Everything our CRDs may use. `description` and `format` say nothing that is checked here.
const std::set<std::string>& KnownKeywords() {
  static const std::set<std::string> known = {"type",
                                              "description",
                                              "format",
                                              "properties",
                                              "additionalProperties",
                                              "required",
                                              "maxProperties",
                                              "items",
                                              "minItems",
                                              "maxItems",
                                              "enum",
                                              "minimum",
                                              "maximum",
                                              "minLength",
                                              "maxLength",
                                              "pattern",
                                              "default",
                                              "example",
                                              "x-kubernetes-int-or-string",
                                              "x-kubernetes-list-type",
                                              "x-kubernetes-list-map-keys",
                                              "x-kubernetes-validations"};
  return known;
}

Status Bad(const std::string& path, const std::string& why) {
  return InvalidArgument("crd schema: " + path + ": " + why);
}

Status ReadType(const Json& json, const std::string& path, SchemaNode* node) {
  const Json* either = Find(json, "x-kubernetes-int-or-string");
  if (either != nullptr && either->is_boolean() && either->get<bool>()) {
    node->type = SchemaType::kIntOrString;
    return Status::Ok();
  }
  const std::string type = StringAt(json, "type");
  for (const auto& [name, value] :
       {std::pair<const char*, SchemaType>{"object", SchemaType::kObject},
        {"array", SchemaType::kArray},
        {"string", SchemaType::kString},
        {"integer", SchemaType::kInteger},
        {"boolean", SchemaType::kBoolean}}) {
    if (type == name) {
      node->type = value;
      return Status::Ok();
    }
  }
  return Bad(path, "type \"" + type + "\" is not known");
}

template <typename T>
void ReadBound(const Json& json, const char* key, std::optional<T>* bound) {
  const Json* value = Find(json, key);
  if (value != nullptr && value->is_number_integer()) *bound = value->get<T>();
}

std::string TextAt(const Json& json, const char* key) {
  const Json* value = Find(json, key);
  return value == nullptr ? std::string() : value->dump();
}

Status ReadRules(const Json& json, const std::string& path, SchemaNode* node) {
  const Json* rules = Find(json, "x-kubernetes-validations");
  if (rules == nullptr) return Status::Ok();
  for (const Json& rule : *rules) {
    SchemaRule out;
    out.text = StringAt(rule, "rule");
    out.message = StringAt(rule, "message");
    out.field_path = StringAt(rule, "fieldPath");
    out.check = FindCelRule(out.text);
    out.transition = out.text.find("oldSelf") != std::string::npos;
    if (out.check == nullptr || out.message.empty()) {
      return Bad(path, "rule \"" + out.text + "\" has no counterpart here, or no message");
    }
    node->rules.push_back(std::move(out));
  }
  return Status::Ok();
}

void ReadScalars(const Json& json, SchemaNode* node) {
  ReadBound(json, "maxProperties", &node->max_properties);
  ReadBound(json, "minItems", &node->min_items);
  ReadBound(json, "maxItems", &node->max_items);
  ReadBound(json, "minimum", &node->minimum);
  ReadBound(json, "maximum", &node->maximum);
  ReadBound(json, "minLength", &node->min_length);
  ReadBound(json, "maxLength", &node->max_length);
  node->default_json = TextAt(json, "default");
  node->example_json = TextAt(json, "example");
  if (const Json* values = Find(json, "enum")) {
    for (const Json& value : *values) node->allowed.push_back(value.dump());
  }
  if (const Json* names = Find(json, "required")) {
    for (const Json& name : *names) node->required.push_back(name.get<std::string>());
  }
}

Status ReadList(const Json& json, const std::string& path, SchemaNode* node) {
  const std::string type = StringAt(json, "x-kubernetes-list-type");
  if (type == "set") node->list_type = ListType::kSet;
  if (type != "map") return Status::Ok();
  node->list_type = ListType::kMap;
  const Json* keys = Find(json, "x-kubernetes-list-map-keys");
  if (keys == nullptr || keys->size() != 1) return Bad(path, "a list of type map needs one key");
  node->map_key = (*keys)[0].get<std::string>();
  return Status::Ok();
}

Result<std::unique_ptr<SchemaNode>> Read(const Json& json, const std::string& path);

Status ReadChildren(const Json& json, const std::string& path, SchemaNode* node) {
  if (const Json* properties = Find(json, "properties")) {
    for (const auto& [name, child] : properties->items()) {
      KVF_ASSIGN_OR_RETURN(node->properties[name], Read(child, path + "." + name));
    }
  }
  if (const Json* additional = Find(json, "additionalProperties")) {
    KVF_ASSIGN_OR_RETURN(node->additional, Read(*additional, path + ".*"));
  }
  if (const Json* items = Find(json, "items")) {
    KVF_ASSIGN_OR_RETURN(node->items, Read(*items, path + "[]"));
  }
  if (node->type == SchemaType::kArray && node->items == nullptr) {
    return Bad(path, "an array needs items");
  }
  return Status::Ok();
}

Result<std::unique_ptr<SchemaNode>> Read(const Json& json, const std::string& path) {
  if (!json.is_object()) return Bad(path, "not a schema");
  for (const auto& [keyword, value] : json.items()) {
    if (KnownKeywords().count(keyword) == 0) {
      return Bad(path, "keyword " + keyword + " is not known");
    }
  }
  auto node = std::make_unique<SchemaNode>();
  KVF_RETURN_IF_ERROR(ReadType(json, path, node.get()));
  ReadScalars(json, node.get());
  KVF_RETURN_IF_ERROR(ReadList(json, path, node.get()));
  KVF_RETURN_IF_ERROR(ReadRules(json, path, node.get()));
  KVF_RETURN_IF_ERROR(ReadChildren(json, path, node.get()));
  node->pattern_text = StringAt(json, "pattern");
  if (!node->pattern_text.empty()) {
    if (!node->max_length.has_value()) return Bad(path, "a pattern needs maxLength");
    node->pattern.emplace(node->pattern_text, std::regex::ECMAScript | std::regex::optimize);
  }
  return node;
}

}  // namespace

Result<std::unique_ptr<SchemaNode>> ParseSchema(std::string_view json) {
  KVF_ASSIGN_OR_RETURN(const Json root, kube::ParseJson(json));
  try {
    return Read(root, "");
  } catch (const std::exception& e) {  // a value of another type than the keyword's; a bad pattern
    return InvalidArgument(std::string("crd schema: ") + e.what());
  }
}

}  // namespace kvfabric
