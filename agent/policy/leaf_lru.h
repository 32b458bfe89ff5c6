#pragma once

// LeafLru: leaf-first LRU. The least recently touched leaf goes, among equals the deepest, so that
// what stays is closed under prefixes and a chain shrinks from its tail.
//
// Owner, threads, units: as EvictionPolicy. Invariants: (1) a present block is in exactly one heap
// iff it has no child here; (2) an absent node exists iff a present block names it as parent, so
// nodes <= 2 x blocks; (3) along parent links the depth grows by one, so links never form a ring:
// a link that does not fit (a client whose chains contradict each other) is left out.
// Cost: O(log leaves) for Insert, Erase and the touch of a leaf, one store for any other touch;
// about 80 bytes a block.

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/policy/eviction_policy.h"
#include "agent/policy/key_id_index.h"
#include "agent/policy/leaf_heap.h"

namespace kvfabric {

class LeafLru final : public EvictionPolicy {
 public:
  explicit LeafLru(EvictionPolicyOptions options = {});
  LeafLru(const LeafLru&) = delete;  // its heaps refer to its own places
  LeafLru& operator=(const LeafLru&) = delete;

  std::string_view name() const override { return "LRU"; }
  PolicyHandle Insert(const PolicyBlock& block, std::int64_t now_us) override;
  void Erase(PolicyHandle handle) override;
  void Touch(PolicyHandle handle, std::int64_t now_us) override;
  void TouchChain(std::span<const PolicyHandle> chain, std::int64_t now_us) override;
  void SetHasOtherHolder(PolicyHandle handle, bool has_other_holder) override;
  Choice NextVictim(std::int64_t now_us, const CanEvict& can_evict) override;
  std::optional<std::int64_t> ColdestIndex() const override;
  std::optional<std::int64_t> ColdestSpillableIndex() const override;
  Victim Describe(PolicyHandle handle) const override;
  bool IsLeaf(PolicyHandle handle) const override;
  std::size_t block_count() const override { return block_count_; }
  std::uint64_t used_bytes() const override { return used_bytes_; }
  std::size_t memory_bytes() const override;

 private:
  // Where a node is. The first three are the kinds of evictable leaves.
  enum class Place : std::uint8_t {
    kDuplicate,  // leaf that another holder has too
    kSpillable,  // leaf only we have
    kSpilledIn,  // leaf only we have, handed to us by a peer
    kRefused,    // leaf the owner could not evict lately, by the time of the refusal
    kInner,      // present, has children
    kAbsent,     // not in the tier, has children there
    kFree,       // unused number
  };
  static constexpr std::size_t kHeaps = 4;
  static constexpr std::uint32_t kNoNode = KeyIdIndex::kNoNode;

  struct Node {
    KeyId id;
    std::int64_t last_touch_us = 0;
    std::uint64_t size_bytes = 0;
    std::uint32_t parent = kNoNode;  // of a free node: the next free one
    std::uint32_t children = 0;
    std::uint32_t depth = 0;
    Place place = Place::kFree;
    bool has_other_holder = false;
    bool spilled_in = false;
  };

  static bool IsLeafPlace(Place place) { return place <= Place::kRefused; }
  static Place HomeOf(const Node& node);

  LeafHeap& HeapOf(Place place) { return heaps_[static_cast<std::size_t>(place)]; }
  const LeafHeap& HeapOf(Place place) const { return heaps_[static_cast<std::size_t>(place)]; }
  Node& Present(PolicyHandle handle);
  const Node& Present(PolicyHandle handle) const;
  std::uint32_t FindNode(const KeyId& id) const;
  std::uint32_t FindOrAddNode(const KeyId& id, std::uint32_t depth);
  void FreeNode(std::uint32_t node);
  void LinkParent(std::uint32_t child, const KeyId& parent);
  void UnlinkParent(std::uint32_t child);
  void AddLeaf(std::uint32_t node, Place place, std::int64_t stamp_us);
  void TakeFromHeap(std::uint32_t node);
  void TouchNode(std::uint32_t node, std::int64_t now_us);
  void ReadmitRefused(std::int64_t now_us);
  // The next leaf to ask for, or kNoNode.
  std::uint32_t NextLeaf(std::int64_t now_us) const;
  Victim DescribeNode(std::uint32_t node) const;

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> places_;  // of nodes in heaps_
  LeafHeap heaps_[kHeaps];
  KeyIdIndex index_;
  std::uint32_t first_free_ = kNoNode;
  std::int64_t newest_us_ = INT64_MIN;  // the latest touch seen
  std::size_t block_count_ = 0;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace kvfabric
