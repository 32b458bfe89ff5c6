#include "operator/specs/schema_check.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

namespace kvfabric {
namespace {

using kube::Cause;
using kube::Find;
using kube::Json;

constexpr std::size_t kShownBytes = 64;
constexpr double kExactDouble = 9007199254740992.0;  // 2^53: up to here every whole number has one

std::string Shown(const Json& value) {
  std::string text = kube::DumpJson(value);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

// The value a rule's fieldPath (".codec", ".a.b") points to.
std::string ShownAt(const Json& value, std::string_view field_path) {
  const Json* at = &value;
  while (at != nullptr && !field_path.empty()) {
    field_path.remove_prefix(1);  // the dot
    const std::string_view step = field_path.substr(0, field_path.find('.'));
    at = Find(*at, std::string(step));
    field_path.remove_prefix(step.size());
  }
  return at == nullptr ? "absent" : Shown(*at);
}

// Single edits between two words, letter case aside.
std::size_t Distance(const std::string& a, const std::string& b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0U : 1U);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

// The candidate nearest to what was written; the first when none is near.
std::string Nearest(const std::string& written, const std::vector<std::string>& candidates) {
  if (written.size() > kShownBytes) return candidates.front();
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) {
                                       return Distance(written, a) < Distance(written, b);
                                     });
  return Distance(written, *best) < best->size() ? *best : candidates.front();
}

std::string Joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string_view TypeRule(SchemaType type) {
  switch (type) {
    case SchemaType::kObject:
      return "must be an object of fields";
    case SchemaType::kArray:
      return "must be a list";
    case SchemaType::kString:
      return "must be a text";
    case SchemaType::kInteger:
      return "must be a whole number";
    case SchemaType::kBoolean:
      return "must be true or false";
    case SchemaType::kIntOrString:
      break;
  }
  return "must be a quantity: a whole number, or one with a unit";
}

bool HasType(const SchemaNode& node, const Json& value) {
  switch (node.type) {
    case SchemaType::kObject:
      return value.is_object();
    case SchemaType::kArray:
      return value.is_array();
    case SchemaType::kString:
      return value.is_string();
    case SchemaType::kInteger:
      return value.is_number_integer() &&
             !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
    case SchemaType::kBoolean:
      return value.is_boolean();
    case SchemaType::kIntOrString:
      return value.is_string() || value.is_number_integer();
  }
  return false;
}

// What could stand there instead.
std::string Suggestion(const SchemaNode& node) {
  if (!node.example_json.empty()) return node.example_json;
  if (!node.allowed.empty()) return node.allowed.front();
  if (!node.default_json.empty()) return node.default_json;
  switch (node.type) {
    case SchemaType::kObject:
      return "{...}";
    case SchemaType::kArray:
      return "[...]";
    case SchemaType::kString:
      return "a text";
    case SchemaType::kInteger:
      return node.minimum.has_value() ? std::to_string(*node.minimum) : "a number";
    case SchemaType::kBoolean:
      return "true or false";
    case SchemaType::kIntOrString:
      break;
  }
  return "\"64Gi\"";
}

// The schema's lengths are in characters, of which UTF-8 starts each with a byte of its own kind.
std::size_t Characters(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6U) != 2; }));
}

// Walks value and schema together. Paths are kept as one text each and cut back.
class Checker {
 public:
  explicit Checker(std::vector<Cause>* faults) : faults_(faults) {}

  // True when the value is valid by schema and rules, so that rules above may look at it.
  bool Check(const SchemaNode& node, const Json& value, const Json* old) {
    if (!HasType(node, value)) {
      Fault(value, std::string(TypeRule(node.type)) + "; write " + Suggestion(node) + " instead");
      return false;
    }
    bool valid = true;
    if (value.is_object()) {
      valid = CheckObject(node, value, old);
    } else if (value.is_array()) {
      valid = CheckArray(node, value, old);
    } else {
      valid = CheckScalar(node, value);
    }
    return valid && CheckRules(node, value, old);
  }

 private:
  void Fault(const Json& value, const std::string& rule) {
    faults_->push_back({path_, Shown(value) + ": " + rule});
  }
  void FaultAt(const std::string& field, std::string text) {
    faults_->push_back({path_.empty() ? field : path_ + "." + field, std::move(text)});
  }

  bool CheckChild(const SchemaNode& node, const Json& value, const Json* old,
                  const std::string& step) {
    return CheckChild(node, value, old, step, step);
  }
  bool CheckChild(const SchemaNode& node, const Json& value, const Json* old,
                  const std::string& step, const std::string& rule_step) {
    const std::size_t length = path_.size();
    const std::size_t rule_length = rule_path_.size();
    path_ += path_.empty() && step.front() == '.' ? step.substr(1) : step;
    rule_path_ += rule_path_.empty() && rule_step.front() == '.' ? rule_step.substr(1) : rule_step;
    const bool valid = Check(node, value, old);
    path_.resize(length);
    rule_path_.resize(rule_length);
    return valid;
  }

  bool CheckObject(const SchemaNode& node, const Json& value, const Json* old) {
    bool valid = true;
    if (node.max_properties.has_value() && value.size() > *node.max_properties) {
      faults_->push_back({path_, std::to_string(value.size()) + " entries: must be at most " +
                                     std::to_string(*node.max_properties) + "; remove some"});
      return false;
    }
    for (const std::string& name : node.required) {
      if (Find(value, name) != nullptr) continue;
      const auto it = node.properties.find(name);
      FaultAt(name, "absent: required; write " + name + ": " +
                        (it == node.properties.end() ? "..." : Suggestion(*it->second)));
      valid = false;
    }
    // A node without properties takes any (metadata).
    if (node.properties.empty() && node.additional == nullptr) return valid;
    for (const auto& [name, member] : value.items()) {
      const Json* old_member = old == nullptr ? nullptr : Find(*old, name);
      const auto it = node.properties.find(name);
      if (it != node.properties.end()) {
        valid = CheckChild(*it->second, member, old_member, "." + name) && valid;
      } else if (node.additional != nullptr) {
        valid =
            CheckChild(*node.additional, member, old_member, "." + name, "[" + name + "]") && valid;
      } else {
        UnknownField(node, name);
        valid = false;
      }
    }
    return valid;
  }

  void UnknownField(const SchemaNode& node, const std::string& name) {
    std::vector<std::string> names;
    for (const auto& [known, child] : node.properties) names.push_back(known);
    FaultAt(name.substr(0, kShownBytes),
            "unknown field; write " + Nearest(name, names) + " instead, or remove it");
  }

  bool CheckArray(const SchemaNode& node, const Json& value, const Json* old) {
    if (node.min_items.has_value() && value.size() < *node.min_items) {
      Fault(value, "must have at least " + std::to_string(*node.min_items) + "; write " +
                       Suggestion(node) + " instead");
      return false;
    }
    if (node.max_items.has_value() && value.size() > *node.max_items) {
      faults_->push_back({path_, std::to_string(value.size()) + " entries: must be at most " +
                                     std::to_string(*node.max_items) + "; remove some"});
      return false;
    }
    bool valid = true;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Json& item = value[i];
      const std::string step = "[" + std::to_string(i) + "]";
      valid = CheckChild(*node.items, item, OldItem(node, item, old), step) && valid;
      const Json* key = node.list_type == ListType::kMap   ? Find(item, node.map_key)
                        : node.list_type == ListType::kSet ? &item
                                                           : nullptr;
      if (key != nullptr && !seen.insert(key->dump()).second) {
        faults_->push_back({path_ + step, Shown(*key) + ": stands twice in this list; write " +
                                              "another " + KeyWord(node) + " or remove it"});
        valid = false;
      }
    }
    return valid;
  }

  static std::string KeyWord(const SchemaNode& node) {
    return node.list_type == ListType::kMap ? node.map_key : "value";
  }

  // Only items of a list with keys have a past; others are new each time.
  static const Json* OldItem(const SchemaNode& node, const Json& item, const Json* old) {
    if (node.list_type != ListType::kMap || old == nullptr || !old->is_array()) return nullptr;
    const Json* key = Find(item, node.map_key);
    if (key == nullptr) return nullptr;
    for (const Json& before : *old) {
      const Json* old_key = Find(before, node.map_key);
      if (old_key != nullptr && *old_key == *key) return &before;
    }
    return nullptr;
  }

  bool CheckScalar(const SchemaNode& node, const Json& value) {
    if (!node.allowed.empty() &&
        std::find(node.allowed.begin(), node.allowed.end(), value.dump()) == node.allowed.end()) {
      Fault(value, "must be one of " + Joined(node.allowed) + "; write " +
                       Nearest(kube::DumpJson(value), node.allowed) + " instead");
      return false;
    }
    if (value.is_string()) return CheckText(node, value);
    if (!value.is_number_integer()) return true;
    const std::int64_t number = value.get<std::int64_t>();
    const bool low = node.minimum.has_value() && number < *node.minimum;
    if (!low && (!node.maximum.has_value() || number <= *node.maximum)) return true;
    Fault(value, BoundRule(node) + "; write " +
                     std::to_string(low ? *node.minimum : *node.maximum) + " instead");
    return false;
  }

  static std::string BoundRule(const SchemaNode& node) {
    if (!node.maximum.has_value()) return "must be at least " + std::to_string(*node.minimum);
    if (!node.minimum.has_value()) return "must be at most " + std::to_string(*node.maximum);
    return "must be between " + std::to_string(*node.minimum) + " and " +
           std::to_string(*node.maximum);
  }

  bool CheckText(const SchemaNode& node, const Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    const std::size_t length = Characters(text);
    if (node.min_length.has_value() && length < *node.min_length) {
      Fault(value, "must have at least " + std::to_string(*node.min_length) +
                       " characters; write " + Suggestion(node) + " instead");
      return false;
    }
    if (node.max_length.has_value() && length > *node.max_length) {
      Fault(value, std::to_string(length) + " characters: must be at most " +
                       std::to_string(*node.max_length) + "; shorten it");
      return false;
    }
    if (node.pattern.has_value() && !std::regex_match(text, *node.pattern)) {
      Fault(value, "must match " + node.pattern_text + "; write " + Suggestion(node) + " instead");
      return false;
    }
    return true;
  }

  bool CheckRules(const SchemaNode& node, const Json& value, const Json* old) {
    bool valid = true;
    for (const SchemaRule& rule : node.rules) {
      if (rule.transition && old == nullptr) continue;
      if (rule.check(value, old)) continue;
      faults_->push_back(
          {rule_path_ + rule.field_path, ShownAt(value, rule.field_path) + ": " + rule.message});
      valid = false;
    }
    return valid;
  }

  std::vector<Cause>* faults_;
  std::string path_;
  // As path_, but an API server writes a member of a map as [key] where a rule of it fails and as
  // .key where its schema does.
  std::string rule_path_;
};

}  // namespace

void Normalize(const SchemaNode& node, Json& value) {
  if (value.is_object()) {
    // null stands for absent: where there is a default it is filled in, else the field goes.
    for (const auto& [name, child] : node.properties) {
      const auto it = value.find(name);
      if (it != value.end() && !it->is_null()) continue;
      if (!child->default_json.empty()) {
        value[name] = Json::parse(child->default_json);
      } else if (it != value.end()) {
        value.erase(it);
      }
    }
    for (auto it = value.begin(); it != value.end();) {
      const auto known = node.properties.find(it.key());
      const SchemaNode* child =
          known != node.properties.end() ? known->second.get() : node.additional.get();
      if (child != nullptr && it->is_null()) {
        it = value.erase(it);
        continue;
      }
      if (child != nullptr) Normalize(*child, *it);
      ++it;
    }
  } else if (value.is_array() && node.items != nullptr) {
    for (Json& item : value) Normalize(*node.items, item);
  } else if (value.is_number_float() && node.type == SchemaType::kInteger) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) <= kExactDouble) {
      value = static_cast<std::int64_t>(number);
    }
  }
}

void CheckValue(const SchemaNode& node, const Json& value, const Json* old,
                std::vector<Cause>* faults) {
  Checker(faults).Check(node, value, old);
}

}  // namespace kvfabric
