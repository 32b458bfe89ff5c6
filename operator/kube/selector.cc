#include "operator/kube/selector.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxTerms = 64;

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool IsWord(std::string_view text, std::string_view also) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           also.find(c) != std::string_view::npos;
  });
}
bool IsKey(std::string_view key) { return !key.empty() && IsWord(key, "-._/"); }
bool IsValue(std::string_view value) { return IsWord(value, "-._"); }

// Splits at commas that are not inside parentheses.
std::vector<std::string_view> SplitTerms(std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      out.push_back(Trim(text.substr(start, i - start)));
      start = i + 1;
    } else if (text[i] == '(') {
      ++depth;
    } else if (text[i] == ')') {
      --depth;
    }
  }
  return out;
}

// `key=value` and its relatives; nullopt when there is no `=`.
struct Comparison {
  std::string_view key;
  std::string_view value;
  bool equal = true;
};
std::optional<Comparison> SplitComparison(std::string_view term) {
  const std::size_t equals = term.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  Comparison out;
  out.equal = equals == 0 || term[equals - 1] != '!';
  out.key = Trim(term.substr(0, out.equal ? equals : equals - 1));
  std::string_view value = term.substr(equals + 1);
  if (out.equal && value.substr(0, 1) == "=") value.remove_prefix(1);
  out.value = Trim(value);
  return out;
}

// A field of an object as text; "" when it is absent, as the API compares it.
std::string FieldOf(const Object& object, const std::string& path) {
  if (path == "metadata.name") return object.meta.name.name;
  if (path == "metadata.namespace") return object.meta.name.ns;
  const Result<Json> root = ParseJson(object.json);
  const std::size_t dot = path.find('.');
  const Json* part = root.ok() ? Find(*root, path.substr(0, dot)) : nullptr;
  return part == nullptr ? "" : StringAt(*part, path.substr(dot + 1));
}

}  // namespace

Result<ObjectSelector::Requirement> ObjectSelector::ParseLabelTerm(std::string_view term) {
  const Status refused =
      InvalidArgument("labelSelector: \"" + std::string(term) +
                      "\": must be key=value, key!=value, key in (a,b), key notin (a,b), key or "
                      "!key");
  if (const std::size_t open = term.find('('); open != std::string_view::npos) {
    if (term.back() != ')') return refused;
    const std::string_view head = Trim(term.substr(0, open));
    const std::size_t space = head.rfind(' ');
    if (space == std::string_view::npos) return refused;
    const std::string_view word = head.substr(space + 1);
    const std::string_view key = Trim(head.substr(0, space));
    if ((word != "in" && word != "notin") || !IsKey(key)) return refused;
    Requirement out{std::string(key), word == "in" ? Test::kIn : Test::kNotIn, {}};
    for (std::string_view value : SplitTerms(term.substr(open + 1, term.size() - open - 2))) {
      if (!IsValue(value)) return refused;
      out.values.emplace(value);
    }
    return out;
  }
  if (const std::optional<Comparison> comparison = SplitComparison(term)) {
    if (!IsKey(comparison->key) || !IsValue(comparison->value)) return refused;
    return Requirement{std::string(comparison->key),
                       comparison->equal ? Test::kIn : Test::kNotIn,
                       {std::string(comparison->value)}};
  }
  const bool absent = term.substr(0, 1) == "!";
  const std::string_view key = absent ? Trim(term.substr(1)) : term;
  if (!IsKey(key)) return refused;
  return Requirement{std::string(key), absent ? Test::kAbsent : Test::kExists, {}};
}

Result<ObjectSelector::Requirement> ObjectSelector::ParseFieldTerm(Kind kind,
                                                                   std::string_view term) {
  const std::optional<Comparison> comparison = SplitComparison(term);
  std::string served = "metadata.name or metadata.namespace";
  if (kind == Kind::kPod) served += ", spec.nodeName or status.phase";
  if (!comparison.has_value()) {
    return InvalidArgument("fieldSelector: \"" + std::string(term) +
                           "\": must be field=value or field!=value, of " + served);
  }
  const std::string key(comparison->key);
  const bool of_pod = key == "spec.nodeName" || key == "status.phase";
  if (key != "metadata.name" && key != "metadata.namespace" && !(kind == Kind::kPod && of_pod)) {
    return InvalidArgument("fieldSelector: " + key + ": not served for " +
                           std::string(TraitsOf(kind).plural) + "; select by " + served);
  }
  return Requirement{
      key, comparison->equal ? Test::kIn : Test::kNotIn, {std::string(comparison->value)}};
}

Result<ObjectSelector> ObjectSelector::Parse(Kind kind, const Scope& scope) {
  ObjectSelector out;
  out.ns_ = scope.ns;
  const std::vector<std::string_view> labels =
      scope.labels.empty() ? std::vector<std::string_view>() : SplitTerms(scope.labels);
  const std::vector<std::string_view> fields =
      scope.fields.empty() ? std::vector<std::string_view>() : SplitTerms(scope.fields);
  if (labels.size() + fields.size() > kMaxTerms) {
    return InvalidArgument("selector: too many terms (limit " + std::to_string(kMaxTerms) + ")");
  }
  for (std::string_view term : labels) {
    KVF_ASSIGN_OR_RETURN(Requirement requirement, ParseLabelTerm(term));
    out.labels_.push_back(std::move(requirement));
  }
  for (std::string_view term : fields) {
    KVF_ASSIGN_OR_RETURN(Requirement requirement, ParseFieldTerm(kind, term));
    out.fields_.push_back(std::move(requirement));
  }
  return out;
}

bool ObjectSelector::Matches(const Object& object) const {
  if (!ns_.empty() && object.meta.name.ns != ns_) return false;
  const auto label_fits = [&](const Requirement& requirement) {
    const auto it = object.meta.labels.find(requirement.key);
    const bool there = it != object.meta.labels.end();
    switch (requirement.test) {
      case Test::kExists:
        return there;
      case Test::kAbsent:
        return !there;
      case Test::kIn:
        return there && requirement.values.count(it->second) != 0;
      case Test::kNotIn:
        return !there || requirement.values.count(it->second) == 0;
    }
    return false;
  };
  const auto field_fits = [&](const Requirement& requirement) {
    const bool listed = requirement.values.count(FieldOf(object, requirement.key)) != 0;
    return listed == (requirement.test == Test::kIn);
  };
  return std::all_of(labels_.begin(), labels_.end(), label_fits) &&
         std::all_of(fields_.begin(), fields_.end(), field_fits);
}

}  // namespace kvfabric::kube
