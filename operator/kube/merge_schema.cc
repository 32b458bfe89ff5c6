#include "operator/kube/merge_schema.h"

namespace kvfabric::kube {
namespace {

constexpr std::string_view kItem = "[]";
constexpr std::string_view kAnyField = "*";

// What the API server's own schemas say of the lists that we and kubectl merge; the other lists of
// built-in kinds are replaced.
std::vector<ListRule> BuiltInRules(Kind kind) {
  std::vector<ListRule> out = {{"metadata.ownerReferences", ListMerge::kMap, {"uid"}},
                               {"metadata.finalizers", ListMerge::kSet, {}}};
  const auto add = [&](std::string path, std::string key) {
    out.push_back({std::move(path), ListMerge::kMap, {std::move(key)}});
  };
  const bool ours = kind == Kind::kPool || kind == Kind::kShardMap;
  if (TraitsOf(kind).has_status && !ours) add("status.conditions", "type");
  if (kind == Kind::kPod) {
    add("spec.containers", "name");
    add("spec.initContainers", "name");
  }
  if (kind == Kind::kDaemonSet) {
    add("spec.template.spec.containers", "name");
    add("spec.template.spec.initContainers", "name");
  }
  if (kind == Kind::kMutatingWebhook || kind == Kind::kValidatingWebhook) add("webhooks", "name");
  return out;
}

const MergeNode& Atomic() {
  static const MergeNode node;
  return node;
}

}  // namespace

MergeNode MergeNode::Of(Kind kind, std::span<const ListRule> more) {
  MergeNode root;
  for (const ListRule& rule : BuiltInRules(kind)) root.Add(rule);
  for (const ListRule& rule : more) root.Add(rule);
  return root;
}

MergeNode& MergeNode::Child(std::string_view step) {
  std::unique_ptr<MergeNode>& child = children_[std::string(step)];
  if (child == nullptr) child = std::make_unique<MergeNode>();
  return *child;
}

void MergeNode::Add(const ListRule& rule) {
  MergeNode* at = this;
  std::string_view rest = rule.path;
  while (!rest.empty()) {
    const std::size_t dot = rest.find('.');
    std::string_view step = rest.substr(0, dot);
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    std::size_t items = 0;
    while (step.size() > kItem.size() && step.substr(step.size() - kItem.size()) == kItem) {
      step.remove_suffix(kItem.size());
      ++items;
    }
    at = &at->Child(step);
    for (; items > 0; --items) at = &at->Child(kItem);
  }
  at->merge_ = rule.merge;
  at->keys_ = rule.keys;
}

const MergeNode& MergeNode::field(std::string_view name) const {
  auto it = children_.find(name);
  if (it == children_.end() || name == kItem) it = children_.find(kAnyField);
  return it == children_.end() ? Atomic() : *it->second;
}

const MergeNode& MergeNode::item() const {
  const auto it = children_.find(kItem);
  return it == children_.end() ? Atomic() : *it->second;
}

}  // namespace kvfabric::kube
