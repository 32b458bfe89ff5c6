#include "agent/policy/leaf_heap.h"

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

void LeafHeap::Push(const Leaf& leaf) {
  leaves_.push_back(leaf);
  SiftUp(leaves_.size() - 1, leaf);
}

void LeafHeap::Remove(std::uint32_t node) {
  const std::size_t at = places_[node];
  KVF_CHECK(at < leaves_.size() && leaves_[at].node == node, "leaf is not in this heap");
  const Leaf last = leaves_.back();
  leaves_.pop_back();
  if (at == leaves_.size()) return;
  if (at > 0 && Colder(last, leaves_[(at - 1) / kArity])) {
    SiftUp(at, last);
  } else {
    SiftDown(at, last);
  }
}

void LeafHeap::SetStamp(std::uint32_t node, std::int64_t stamp_us) {
  const std::size_t at = places_[node];
  KVF_CHECK(at < leaves_.size() && leaves_[at].node == node, "leaf is not in this heap");
  Leaf leaf = leaves_[at];
  const bool warmer = stamp_us > leaf.stamp_us;
  leaf.stamp_us = stamp_us;
  if (warmer) {
    SiftDown(at, leaf);
  } else {
    SiftUp(at, leaf);
  }
}

void LeafHeap::Place(std::size_t at, const Leaf& leaf) {
  leaves_[at] = leaf;
  places_[leaf.node] = static_cast<std::uint32_t>(at);
}

void LeafHeap::SiftUp(std::size_t at, const Leaf& leaf) {
  while (at > 0) {
    const std::size_t parent = (at - 1) / kArity;
    if (!Colder(leaf, leaves_[parent])) break;
    Place(at, leaves_[parent]);
    at = parent;
  }
  Place(at, leaf);
}

void LeafHeap::SiftDown(std::size_t at, const Leaf& leaf) {
  for (;;) {
    const std::size_t first = at * kArity + 1;
    if (first >= leaves_.size()) break;
    const std::size_t end = std::min(first + kArity, leaves_.size());
    std::size_t coldest = first;
    for (std::size_t child = first + 1; child < end; ++child) {
      if (Colder(leaves_[child], leaves_[coldest])) coldest = child;
    }
    if (!Colder(leaves_[coldest], leaf)) break;
    Place(at, leaves_[coldest]);
    at = coldest;
  }
  Place(at, leaf);
}

}  // namespace kvfabric
