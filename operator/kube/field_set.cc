#include "operator/kube/field_set.h"

#include <nlohmann/json.hpp>

namespace kvfabric::kube {
namespace {

constexpr const char* kSelf = ".";

// One edge as people write it after a path.
std::string Readable(std::string_view edge) {
  const std::string_view rest = edge.substr(2);
  if (edge.front() == 'f') return "." + std::string(rest);
  if (edge.front() == 'v') return "[=" + std::string(rest) + "]";
  const Json keys = Json::parse(rest, nullptr, false);
  if (!keys.is_object()) return "[" + std::string(rest) + "]";
  std::string out = "[";
  for (const auto& [key, value] : keys.items()) {
    if (out.size() > 1) out += ',';
    out += key + "=" + DumpJson(value);
  }
  return out + "]";
}

bool IsEdge(std::string_view edge) {
  return edge.size() >= 2 && edge[1] == ':' &&
         (edge[0] == 'f' || edge[0] == 'k' || edge[0] == 'v' || edge[0] == 'i');
}

}  // namespace

Result<FieldSet> FieldSet::FromFieldsV1(const Json& fields) {
  if (!fields.is_object()) return InvalidArgument("fieldsV1: must be an object");
  FieldSet out;
  out.member_ = fields.empty();
  for (const auto& [edge, below] : fields.items()) {
    if (edge == kSelf) {
      out.member_ = true;
      continue;
    }
    if (!IsEdge(edge)) {
      return InvalidArgument("fieldsV1: \"" + edge + "\": must begin with f:, k:, v: or i:");
    }
    KVF_ASSIGN_OR_RETURN(out.children_[edge], FromFieldsV1(below));
  }
  return out;
}

Json FieldSet::ToFieldsV1() const {
  Json out = Json::object();
  if (member_ && !children_.empty()) out[kSelf] = Json::object();
  for (const auto& [edge, below] : children_) out[edge] = below.ToFieldsV1();
  return out;
}

const FieldSet* FieldSet::child(std::string_view edge) const {
  const auto it = children_.find(edge);
  return it == children_.end() ? nullptr : &it->second;
}

void FieldSet::DropEmpty() {
  for (auto it = children_.begin(); it != children_.end();) {
    it->second.DropEmpty();
    it = it->second.empty() ? children_.erase(it) : std::next(it);
  }
}

FieldSet FieldSet::Union(const FieldSet& other) const {
  FieldSet out = *this;
  out.member_ = member_ || other.member_;
  for (const auto& [edge, below] : other.children_) {
    FieldSet& mine = out.children_[edge];
    mine = mine.Union(below);
  }
  return out;
}

FieldSet FieldSet::Minus(const FieldSet& other) const {
  FieldSet out;
  out.member_ = member_ && !other.member_;
  for (const auto& [edge, below] : children_) {
    const FieldSet* theirs = other.child(edge);
    FieldSet left = theirs == nullptr ? below : below.Minus(*theirs);
    if (!left.empty()) out.children_.emplace(edge, std::move(left));
  }
  return out;
}

FieldSet FieldSet::Intersection(const FieldSet& other) const {
  FieldSet out;
  out.member_ = member_ && other.member_;
  for (const auto& [edge, below] : children_) {
    const FieldSet* theirs = other.child(edge);
    if (theirs == nullptr) continue;
    FieldSet both = below.Intersection(*theirs);
    if (!both.empty()) out.children_.emplace(edge, std::move(both));
  }
  return out;
}

void FieldSet::ForEach(const std::function<void(const std::string&)>& visit) const {
  ForEachFrom("", visit);
}

void FieldSet::ForEachFrom(const std::string& path,
                           const std::function<void(const std::string&)>& visit) const {
  if (member_) visit(path);
  for (const auto& [edge, below] : children_) below.ForEachFrom(path + Readable(edge), visit);
}

}  // namespace kvfabric::kube
