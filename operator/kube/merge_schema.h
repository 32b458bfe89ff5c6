#pragma once

// MergeNode: how the parts of one kind's objects are merged by server-side apply and by strategic
// merge patches. Objects are merged member by member; lists are replaced as a whole unless a rule
// says that they are a set, or a map by some keys of their items. Immutable once made; any thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operator/kube/object.h"

namespace kvfabric::kube {

enum class ListMerge : std::uint8_t { kAtomic, kSet, kMap };

// One list that is not atomic: `status.conditions`, `spec.containers[].ports`, `spec.pools.*.names`
// (`[]` = in each item, `*` = in each member).
struct ListRule {
  std::string path;
  ListMerge merge = ListMerge::kAtomic;
  std::vector<std::string> keys;  // of kMap
};

class MergeNode {
 public:
  // The rules of `kind` that hold for every kind or are built in, and `more`.
  static MergeNode Of(Kind kind, std::span<const ListRule> more);

  ListMerge merge() const { return merge_; }
  const std::vector<std::string>& keys() const { return keys_; }
  const MergeNode& field(std::string_view name) const;
  const MergeNode& item() const;

 private:
  MergeNode& Child(std::string_view step);
  void Add(const ListRule& rule);

  ListMerge merge_ = ListMerge::kAtomic;
  std::vector<std::string> keys_;
  // `*` stands for every other member, `[]` for items.
  std::map<std::string, std::unique_ptr<MergeNode>, std::less<>> children_;
};

}  // namespace kvfabric::kube
