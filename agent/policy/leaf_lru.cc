#include "agent/policy/leaf_lru.h"

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

LeafLru::LeafLru(EvictionPolicyOptions options)
    : heaps_{LeafHeap(places_), LeafHeap(places_), LeafHeap(places_), LeafHeap(places_)} {
  if (options.expected_blocks == 0) return;
  nodes_.reserve(options.expected_blocks);
  places_.reserve(options.expected_blocks);
  index_.Reserve(options.expected_blocks, [](std::uint32_t) { return KeyId{}; });
}

LeafLru::Place LeafLru::HomeOf(const Node& node) {
  if (node.has_other_holder) return Place::kDuplicate;
  return node.spilled_in ? Place::kSpilledIn : Place::kSpillable;
}

PolicyHandle LeafLru::Insert(const PolicyBlock& block, std::int64_t now_us) {
  const std::uint32_t at = FindOrAddNode(block.id, block.depth);
  KVF_CHECK(nodes_[at].place == Place::kAbsent, "block is in the policy already");
  // Never older than what was touched before it, also if the caller's clock reading is late.
  newest_us_ = std::max(newest_us_, now_us);
  {
    Node& node = nodes_[at];
    node.last_touch_us = std::min(block.travelled_last_touch_us.value_or(newest_us_), newest_us_);
    node.size_bytes = block.size_bytes;
    node.has_other_holder = block.has_other_holder;
    node.spilled_in = block.spilled_in;
    node.place = Place::kInner;
    if (!block.parent.none()) LinkParent(at, block.parent);
  }
  const Node& node = nodes_[at];  // linking may have moved the nodes
  if (node.children == 0) AddLeaf(at, HomeOf(node), node.last_touch_us);
  ++block_count_;
  used_bytes_ += block.size_bytes;
  return PolicyHandle{at};
}

void LeafLru::Erase(PolicyHandle handle) {
  Node& node = Present(handle);
  const auto at = static_cast<std::uint32_t>(handle);
  --block_count_;
  used_bytes_ -= node.size_bytes;
  if (IsLeafPlace(node.place)) TakeFromHeap(at);
  node.place = Place::kAbsent;
  UnlinkParent(at);
  if (node.children == 0) FreeNode(at);
}

void LeafLru::Touch(PolicyHandle handle, std::int64_t now_us) {
  Present(handle);
  TouchNode(static_cast<std::uint32_t>(handle), now_us);
}

void LeafLru::TouchChain(std::span<const PolicyHandle> chain, std::int64_t now_us) {
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) Touch(*it, now_us);
}

void LeafLru::TouchNode(std::uint32_t at, std::int64_t now_us) {
  Node& node = nodes_[at];
  newest_us_ = std::max(newest_us_, now_us);
  if (now_us <= node.last_touch_us) return;
  node.last_touch_us = now_us;
  // A refused leaf waits by the time of its refusal; its touch counts when it comes back.
  if (node.place < Place::kRefused) HeapOf(node.place).SetStamp(at, now_us);
}

void LeafLru::SetHasOtherHolder(PolicyHandle handle, bool has_other_holder) {
  Node& node = Present(handle);
  if (node.has_other_holder == has_other_holder) return;
  node.has_other_holder = has_other_holder;
  if (node.place >= Place::kRefused) return;
  const auto at = static_cast<std::uint32_t>(handle);
  TakeFromHeap(at);
  AddLeaf(at, HomeOf(node), node.last_touch_us);
}

EvictionPolicy::Choice LeafLru::NextVictim(std::int64_t now_us, const CanEvict& can_evict) {
  ReadmitRefused(now_us);
  for (std::size_t asked = 0; asked < kMaxRefusals; ++asked) {
    const std::uint32_t at = NextLeaf(now_us);
    if (at == kNoNode) return {Outcome::kNone, {}};
    const Victim victim = DescribeNode(at);
    if (can_evict(victim)) return {Outcome::kVictim, victim};
    TakeFromHeap(at);
    AddLeaf(at, Place::kRefused, now_us);
  }
  return {Outcome::kRefused, {}};
}

void LeafLru::ReadmitRefused(std::int64_t now_us) {
  LeafHeap& refused = HeapOf(Place::kRefused);
  for (std::size_t i = 0; i < kMaxRefusals && !refused.empty(); ++i) {
    const LeafHeap::Leaf leaf = refused.coldest();
    if (leaf.stamp_us > now_us - kRefusedForUs) return;
    TakeFromHeap(leaf.node);
    const Node& node = nodes_[leaf.node];
    AddLeaf(leaf.node, HomeOf(node), node.last_touch_us);
  }
}

std::uint32_t LeafLru::NextLeaf(std::int64_t now_us) const {
  if (const LeafHeap& duplicates = HeapOf(Place::kDuplicate); !duplicates.empty()) {
    return duplicates.coldest().node;
  }
  const LeafHeap& own = HeapOf(Place::kSpillable);
  const LeafHeap& spilled_in = HeapOf(Place::kSpilledIn);
  if (!own.empty() &&
      (spilled_in.empty() || !LeafHeap::Colder(spilled_in.coldest(), own.coldest()))) {
    return own.coldest().node;
  }
  if (!spilled_in.empty()) return spilled_in.coldest().node;
  // Nothing else is left: ask again, at once, for what was refused in an earlier round.
  const LeafHeap& refused = HeapOf(Place::kRefused);
  if (!refused.empty() && refused.coldest().stamp_us < now_us) return refused.coldest().node;
  return kNoNode;
}

std::optional<std::int64_t> LeafLru::ColdestIndex() const {
  std::optional<std::int64_t> coldest;
  for (const Place place : {Place::kDuplicate, Place::kSpillable, Place::kSpilledIn}) {
    const LeafHeap& heap = HeapOf(place);
    if (heap.empty()) continue;
    const std::int64_t stamp_us = heap.coldest().stamp_us;
    if (!coldest.has_value() || stamp_us < *coldest) coldest = stamp_us;
  }
  return coldest;
}

std::optional<std::int64_t> LeafLru::ColdestSpillableIndex() const {
  const LeafHeap& heap = HeapOf(Place::kSpillable);
  if (heap.empty()) return std::nullopt;
  return heap.coldest().stamp_us;
}

Victim LeafLru::Describe(PolicyHandle handle) const {
  Present(handle);
  return DescribeNode(static_cast<std::uint32_t>(handle));
}

Victim LeafLru::DescribeNode(std::uint32_t at) const {
  const Node& node = nodes_[at];
  return {.handle = PolicyHandle{at},
          .id = node.id,
          .size_bytes = node.size_bytes,
          .last_touch_us = node.last_touch_us,
          .depth = node.depth,
          .has_other_holder = node.has_other_holder,
          .spilled_in = node.spilled_in};
}

bool LeafLru::IsLeaf(PolicyHandle handle) const { return IsLeafPlace(Present(handle).place); }

std::size_t LeafLru::memory_bytes() const {
  std::size_t bytes = nodes_.capacity() * sizeof(Node) + index_.memory_bytes() +
                      places_.capacity() * sizeof(std::uint32_t);
  for (const LeafHeap& heap : heaps_) bytes += heap.memory_bytes();
  return bytes;
}

LeafLru::Node& LeafLru::Present(PolicyHandle handle) {
  const auto at = static_cast<std::uint32_t>(handle);
  KVF_CHECK(at < nodes_.size() && nodes_[at].place < Place::kAbsent, "handle names no block");
  return nodes_[at];
}

const LeafLru::Node& LeafLru::Present(PolicyHandle handle) const {
  const auto at = static_cast<std::uint32_t>(handle);
  KVF_CHECK(at < nodes_.size() && nodes_[at].place < Place::kAbsent, "handle names no block");
  return nodes_[at];
}

std::uint32_t LeafLru::FindNode(const KeyId& id) const {
  return index_.Find(id, [this](std::uint32_t node) -> const KeyId& { return nodes_[node].id; });
}

std::uint32_t LeafLru::FindOrAddNode(const KeyId& id, std::uint32_t depth) {
  std::uint32_t at = FindNode(id);
  if (at != kNoNode) return at;
  if (first_free_ != kNoNode) {
    at = first_free_;
    first_free_ = nodes_[at].parent;
  } else {
    at = static_cast<std::uint32_t>(nodes_.size());
    KVF_CHECK(at != kNoNode, "more than 2^32 - 1 blocks in one policy");
    nodes_.emplace_back();
    places_.push_back(0);
  }
  index_.Add(id, at, [this](std::uint32_t node) -> const KeyId& { return nodes_[node].id; });
  Node node;
  node.id = id;
  node.depth = depth;
  node.place = Place::kAbsent;
  nodes_[at] = node;
  return at;
}

void LeafLru::FreeNode(std::uint32_t at) {
  Node& node = nodes_[at];
  index_.Remove(node.id, [this](std::uint32_t n) -> const KeyId& { return nodes_[n].id; });
  node.place = Place::kFree;
  node.parent = first_free_;
  first_free_ = at;
}

void LeafLru::LinkParent(std::uint32_t child, const KeyId& parent) {
  // The depth its children know it at, if they came first: so no link can close a ring.
  const std::uint32_t depth = nodes_[child].depth;
  if (depth == 0) return;
  const std::uint32_t at = FindOrAddNode(parent, depth - 1);
  Node& node = nodes_[at];
  if (node.depth != depth - 1) return;
  ++node.children;
  nodes_[child].parent = at;
  if (IsLeafPlace(node.place)) {
    TakeFromHeap(at);
    node.place = Place::kInner;
  }
}

void LeafLru::UnlinkParent(std::uint32_t child) {
  const std::uint32_t at = nodes_[child].parent;
  if (at == kNoNode) return;
  nodes_[child].parent = kNoNode;
  Node& node = nodes_[at];
  if (--node.children > 0) return;
  if (node.place == Place::kAbsent) {
    FreeNode(at);
  } else {
    AddLeaf(at, HomeOf(node), node.last_touch_us);
  }
}

void LeafLru::AddLeaf(std::uint32_t at, Place place, std::int64_t stamp_us) {
  nodes_[at].place = place;
  HeapOf(place).Push({.stamp_us = stamp_us, .depth = nodes_[at].depth, .node = at});
}

void LeafLru::TakeFromHeap(std::uint32_t at) { HeapOf(nodes_[at].place).Remove(at); }

}  // namespace kvfabric
