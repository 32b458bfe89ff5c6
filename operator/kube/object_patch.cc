#include "operator/kube/object_patch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/apply_merge.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kDirective = "$patch";
constexpr const char* kRetainKeys = "$retainKeys";
constexpr std::string_view kDeleteFromList = "$deleteFromPrimitiveList/";
constexpr std::string_view kElementOrder = "$setElementOrder/";

bool HasPrefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Adds the bytes of `value`, roughly, to `*bytes`; false once depth or size exceed an object's.
// Copies may double a value with each operation, so what is looked at is bounded too.
bool WithinBounds(const Json& value, std::size_t depth, std::size_t* bytes) {
  *bytes += value.is_string() ? value.get_ref<const std::string&>().size() + 2 : 4;
  if (*bytes > kMaxObjectBytes || depth > kMaxJsonDepth) return false;
  if (!value.is_structured()) return true;
  for (const auto& [name, member] : value.items()) {
    if (value.is_object()) *bytes += name.size() + 3;
    if (!WithinBounds(member, depth + 1, bytes)) return false;
  }
  return true;
}

Status CheckBounds(const Json& value) {
  std::size_t bytes = 0;
  if (WithinBounds(value, 0, &bytes)) return Status::Ok();
  return InvalidArgument("patch: the result is longer than " + std::to_string(kMaxObjectBytes) +
                         " bytes or nested deeper than " + std::to_string(kMaxJsonDepth));
}

void MergeMembers(const MergeNode& schema, const Json& patch, Json& target);

// An item of a keyed list, as an item of its own: without what was meant for the merging.
Json WithoutDirectives(const MergeNode& schema, const Json& item) {
  if (!item.is_object()) return item;
  Json out = Json::object();
  MergeMembers(schema, item, out);
  return out;
}

void MergeList(const MergeNode& schema, const Json& patch, Json& target) {
  const bool replace = std::any_of(patch.begin(), patch.end(), [](const Json& item) {
    return StringAt(item, kDirective) == "replace";
  });
  if (replace) target = Json::array();
  for (const Json& item : patch) {
    const std::string directive = StringAt(item, kDirective);
    if (directive == "replace") continue;
    const std::optional<std::string> edge = ItemEdge(schema, item);
    const auto there = std::find_if(target.begin(), target.end(), [&](const Json& mine) {
      return edge.has_value() && ItemEdge(schema, mine) == edge;
    });
    if (directive == "delete") {
      if (there != target.end()) target.erase(there);
    } else if (there == target.end()) {
      target.push_back(WithoutDirectives(schema.item(), item));
    } else if (item.is_object()) {
      MergeMembers(schema.item(), item, *there);
    }
  }
}

void MergeMember(const MergeNode& schema, const Json& patch, Json& target) {
  if (patch.is_object()) {
    const std::string directive = StringAt(patch, kDirective);
    if (!target.is_object() || directive == "replace") target = Json::object();
    MergeMembers(schema, patch, target);
  } else if (patch.is_array() && target.is_array() && schema.merge() != ListMerge::kAtomic) {
    MergeList(schema, patch, target);
  } else if (patch.is_array() && schema.merge() != ListMerge::kAtomic) {
    target = Json::array();
    MergeList(schema, patch, target);
  } else {
    target = patch;
  }
}

void DeleteFromList(const Json& values, Json& list) {
  if (!list.is_array() || !values.is_array()) return;
  for (const Json& value : values) {
    list.erase(std::remove(list.begin(), list.end(), value), list.end());
  }
}

void MergeMembers(const MergeNode& schema, const Json& patch, Json& target) {
  for (const auto& [name, member] : patch.items()) {
    if (name == kDirective || name == kRetainKeys || HasPrefix(name, kElementOrder)) continue;
    if (HasPrefix(name, kDeleteFromList)) {
      const std::string list = name.substr(kDeleteFromList.size());
      if (target.contains(list)) DeleteFromList(member, target[list]);
    } else if (member.is_null() || StringAt(member, kDirective) == "delete") {
      target.erase(name);
    } else {
      MergeMember(schema.field(name), member, target[name]);
    }
  }
  const Json* retained = Find(patch, kRetainKeys);
  if (retained == nullptr || !retained->is_array()) return;
  Json kept = Json::object();
  for (const Json& key : *retained) {
    if (!key.is_string()) continue;
    const auto member = target.find(key.get<std::string>());
    if (member != target.end()) kept[member.key()] = *member;
  }
  target = std::move(kept);
}

}  // namespace

Status ApplyMergePatch(const Json& patch, Json& target) {
  if (!patch.is_object()) return InvalidArgument("patch: must be an object");
  target.merge_patch(patch);
  return CheckBounds(target);
}

Status ApplyJsonPatch(const Json& patch, Json& target) {
  if (!patch.is_array()) return InvalidArgument("patch: must be a list of operations");
  if (patch.size() > kMaxPatchOperations) {
    return InvalidArgument("patch: too many operations (" + std::to_string(patch.size()) +
                           ", limit " + std::to_string(kMaxPatchOperations) + ")");
  }
  for (std::size_t i = 0; i < patch.size(); ++i) {
    try {
      target.patch_inplace(Json::array({patch[i]}));
    } catch (const Json::exception& e) {
      return InvalidArgument("patch: operation " + std::to_string(i) + " (" +
                             StringAt(patch[i], "op") + " " + StringAt(patch[i], "path") +
                             "): " + e.what());
    }
    KVF_RETURN_IF_ERROR(CheckBounds(target));
  }
  return Status::Ok();
}

Status ApplyStrategicPatch(const MergeNode& schema, const Json& patch, Json& target) {
  if (!patch.is_object()) return InvalidArgument("patch: must be an object");
  MergeMembers(schema, patch, target);
  return CheckBounds(target);
}

}  // namespace kvfabric::kube
