#include "operator/kube/apply_merge.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace kvfabric::kube {
namespace {

std::string FieldEdge(const std::string& name) { return "f:" + name; }

// A list whose items can be told apart; what was stored before a rule, or without a schema, may
// not be one, and is then replaced as a whole.
bool IsKeyed(const MergeNode& node, const Json& list) {
  if (!list.is_array() || node.merge() == ListMerge::kAtomic) return false;
  std::set<std::string> seen;
  return std::all_of(list.begin(), list.end(), [&](const Json& item) {
    const std::optional<std::string> edge = ItemEdge(node, item);
    return edge.has_value() && seen.insert(*edge).second;
  });
}

// The items of a keyed list by their edges.
std::map<std::string, const Json*> ItemsByEdge(const MergeNode& node, const Json& list) {
  std::map<std::string, const Json*> out;
  for (const Json& item : list) out.emplace(ItemEdge(node, item).value_or(""), &item);
  return out;
}

void CollectFields(const MergeNode& node, const Json& value, FieldSet* out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [name, member] : value.items()) {
      CollectFields(node.field(name), member, &out->Child(FieldEdge(name)));
    }
  } else if (IsKeyed(node, value)) {
    // Nothing when it is empty: such a list is only its items.
    for (const Json& item : value) {
      FieldSet& child = out->Child(*ItemEdge(node, item));
      child.set_member();
      if (item.is_object()) CollectFields(node.item(), item, &child);
    }
  } else {
    out->set_member();
  }
}

// Every part of a value that came or went, the objects between included.
void CollectParts(const MergeNode& node, const Json& value, FieldSet* out) {
  out->set_member();
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      CollectParts(node.field(name), member, &out->Child(FieldEdge(name)));
    }
  } else if (IsKeyed(node, value)) {
    for (const Json& item : value) {
      CollectParts(node.item(), item, &out->Child(*ItemEdge(node, item)));
    }
  }
}

struct Sides {
  FieldSet* added;
  FieldSet* modified;
  FieldSet* removed;

  Sides Child(const std::string& edge) const {
    return {&added->Child(edge), &modified->Child(edge), &removed->Child(edge)};
  }
};

void CompareParts(const MergeNode& node, const Json& before, const Json& after, Sides out) {
  if (before.is_object() && after.is_object()) {
    for (const auto& [name, member] : before.items()) {
      const Json* now = Find(after, name);
      const Sides below = out.Child(FieldEdge(name));
      if (now == nullptr) {
        CollectParts(node.field(name), member, below.removed);
      } else {
        CompareParts(node.field(name), member, *now, below);
      }
    }
    for (const auto& [name, member] : after.items()) {
      if (Find(before, name) != nullptr) continue;
      CollectParts(node.field(name), member, &out.added->Child(FieldEdge(name)));
    }
  } else if (IsKeyed(node, before) && IsKeyed(node, after)) {
    const auto old_items = ItemsByEdge(node, before);
    const auto new_items = ItemsByEdge(node, after);
    for (const auto& [edge, item] : old_items) {
      const auto now = new_items.find(edge);
      if (now == new_items.end()) {
        CollectParts(node.item(), *item, &out.removed->Child(edge));
      } else {
        CompareParts(node.item(), *item, *now->second, out.Child(edge));
      }
    }
    for (const auto& [edge, item] : new_items) {
      if (old_items.count(edge) == 0) CollectParts(node.item(), *item, &out.added->Child(edge));
    }
  } else if (before != after) {
    // One value became another, perhaps of another type: what was inside is gone with it.
    CollectParts(node, before, out.removed);
    CollectParts(node, after, out.modified);
    *out.removed = out.removed->Minus(*out.modified);
  }
}

// Items that both have stand in the order of `config`, its new ones where it has them; the others
// stay behind what they stood behind.
Json MergeKeyed(const MergeNode& node, const Json& live, const Json& config) {
  const auto there = ItemsByEdge(node, live);
  const auto wanted = ItemsByEdge(node, config);
  Json out = Json::array();
  std::size_t next = 0;  // of `config`, not yet in `out`
  const auto take = [&] {
    const Json& item = config[next++];
    const auto mine = there.find(*ItemEdge(node, item));
    out.push_back(mine == there.end() ? item : MergeInto(node.item(), *mine->second, item));
  };
  const auto is_new = [&](const Json& item) { return there.count(*ItemEdge(node, item)) == 0; };
  for (const Json& item : live) {
    const std::string edge = *ItemEdge(node, item);
    if (wanted.count(edge) == 0) {
      out.push_back(item);
      continue;
    }
    std::size_t shared = next;
    while (shared < config.size() && is_new(config[shared])) ++shared;
    // Another one is next: this one's turn comes in the order of `config`.
    if (shared == config.size() || *ItemEdge(node, config[shared]) != edge) continue;
    while (next <= shared) take();
  }
  while (next < config.size()) take();
  return out;
}

Status CheckKeyed(const MergeNode& node, const Json& list) {
  std::set<std::string> seen;
  for (const Json& item : list) {
    const std::optional<std::string> edge = ItemEdge(node, item);
    if (!edge.has_value()) {
      std::string keys;
      for (const std::string& key : node.keys()) keys += (keys.empty() ? "" : ", ") + key;
      return InvalidArgument(": each item needs " + keys);
    }
    if (!seen.insert(*edge).second) return InvalidArgument(": " + *edge + ": is there twice");
  }
  return Status::Ok();
}

Status CheckListsAt(const MergeNode& node, const Json& value, const std::string& path) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      KVF_RETURN_IF_ERROR(
          CheckListsAt(node.field(name), member, path.empty() ? name : path + "." + name));
    }
  } else if (value.is_array() && node.merge() != ListMerge::kAtomic) {
    const Status keyed = CheckKeyed(node, value);
    if (!keyed.ok()) return InvalidArgument(path + keyed.message());
    for (std::size_t i = 0; i < value.size(); ++i) {
      KVF_RETURN_IF_ERROR(
          CheckListsAt(node.item(), value[i], path + "[" + std::to_string(i) + "]"));
    }
  }
  return Status::Ok();
}

}  // namespace

std::optional<std::string> ItemEdge(const MergeNode& list, const Json& item) {
  if (list.merge() == ListMerge::kSet) return "v:" + DumpJson(item);
  Json keys = Json::object();
  for (const std::string& key : list.keys()) {
    const Json* value = Find(item, key);
    if (value == nullptr || value->is_structured()) return std::nullopt;
    keys[key] = *value;
  }
  return "k:" + DumpJson(keys);
}

Status CheckLists(const MergeNode& node, const Json& config) {
  return CheckListsAt(node, config, "");
}

FieldSet FieldsOf(const MergeNode& node, const Json& value) {
  FieldSet out;
  CollectFields(node, value, &out);
  out.DropEmpty();
  return out;
}

Comparison Compare(const MergeNode& node, const Json& old_value, const Json& new_value) {
  Comparison out;
  CompareParts(node, old_value, new_value, {&out.added, &out.modified, &out.removed});
  for (FieldSet* set : {&out.added, &out.modified, &out.removed}) set->DropEmpty();
  return out;
}

Json MergeInto(const MergeNode& node, const Json& live, const Json& config) {
  if (live.is_object() && config.is_object()) {
    Json out = live;
    for (const auto& [name, member] : config.items()) {
      const Json* mine = Find(live, name);
      out[name] = mine == nullptr ? member : MergeInto(node.field(name), *mine, member);
    }
    return out;
  }
  if (!IsKeyed(node, live) || !IsKeyed(node, config)) return config;
  return MergeKeyed(node, live, config);
}

void Prune(const MergeNode& node, const FieldSet& last, const FieldSet& managed, Json& value) {
  static const FieldSet kNothing;
  if (value.is_object()) {
    for (const auto& [edge, below] : last.children()) {
      if (edge.substr(0, 2) != "f:") continue;
      const std::string name = edge.substr(2);
      const auto member = value.find(name);
      if (member == value.end()) continue;
      const FieldSet* still = managed.child(edge);
      if (still == nullptr) {
        value.erase(member);
      } else {
        Prune(node.field(name), below, *still, *member);
      }
    }
    return;
  }
  if (!IsKeyed(node, value)) return;
  Json kept = Json::array();
  for (Json& item : value) {
    const std::string edge = *ItemEdge(node, item);
    const FieldSet* below = last.child(edge);
    const FieldSet* still = managed.child(edge);
    if (below != nullptr && below->member() && (still == nullptr || !still->member())) continue;
    if (below != nullptr) Prune(node.item(), *below, still == nullptr ? kNothing : *still, item);
    kept.push_back(std::move(item));
  }
  value = std::move(kept);
}

}  // namespace kvfabric::kube
