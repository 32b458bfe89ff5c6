#pragma once

// SchemaNode: one node of a CRD's OpenAPI schema. Private to operator/specs.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "operator/specs/cel_rules.h"

namespace kvfabric {

enum class SchemaType : std::uint8_t { kObject, kArray, kString, kInteger, kBoolean, kIntOrString };
enum class ListType : std::uint8_t { kAtomic, kSet, kMap };

struct SchemaRule {
  std::string text;
  std::string message;
  std::string field_path;  // ".codec", relative; "" = the node itself
  CelRule check = nullptr;
  bool transition = false;  // needs the old value
};

struct SchemaNode {
  SchemaType type = SchemaType::kObject;
  // Objects: either properties or one schema for any member, or neither (metadata).
  std::map<std::string, std::unique_ptr<SchemaNode>> properties;
  std::unique_ptr<SchemaNode> additional;
  std::vector<std::string> required;
  std::optional<std::size_t> max_properties;
  // Arrays.
  std::unique_ptr<SchemaNode> items;
  ListType list_type = ListType::kAtomic;
  std::string map_key;
  std::optional<std::size_t> min_items;
  std::optional<std::size_t> max_items;
  // Scalars.
  std::vector<std::string> allowed;  // JSON texts of `enum`
  std::optional<std::int64_t> minimum;
  std::optional<std::int64_t> maximum;
  std::optional<std::size_t> min_length;
  std::optional<std::size_t> max_length;
  std::string pattern_text;
  std::optional<std::regex> pattern;

  std::string default_json;  // "" = none
  std::string example_json;  // "" = none
  std::vector<SchemaRule> rules;
};

// Reads `openAPIV3Schema` (JSON text). Unknown keywords are refused.
Result<std::unique_ptr<SchemaNode>> ParseSchema(std::string_view json);

}  // namespace kvfabric
