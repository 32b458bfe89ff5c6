#pragma once

// LeafHeap: the leaves of one kind, coldest first; a 4-ary heap whose members can be moved and
// taken out by number. Owned by LeafLru; externally synchronised. Among equal stamps the deeper
// block is the colder. All operations O(log n).

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvfabric {

class LeafHeap {
 public:
  struct Leaf {
    std::int64_t stamp_us = 0;
    std::uint32_t depth = 0;
    std::uint32_t node = 0;
  };

  // `places[node]` is where that node stands in the heap that holds it. Shared by several heaps, as
  // a leaf is in one at a time; outlives them.
  explicit LeafHeap(std::vector<std::uint32_t>& places) : places_(places) {}

  bool empty() const { return leaves_.empty(); }
  std::size_t size() const { return leaves_.size(); }
  const Leaf& coldest() const { return leaves_.front(); }
  std::size_t memory_bytes() const { return leaves_.capacity() * sizeof(Leaf); }

  void Push(const Leaf& leaf);
  void Remove(std::uint32_t node);
  void SetStamp(std::uint32_t node, std::int64_t stamp_us);

  static bool Colder(const Leaf& a, const Leaf& b) {
    return a.stamp_us != b.stamp_us ? a.stamp_us < b.stamp_us : a.depth > b.depth;
  }

 private:
  static constexpr std::size_t kArity = 4;  // half the levels of a binary heap, one line a level

  void Place(std::size_t at, const Leaf& leaf);
  void SiftUp(std::size_t at, const Leaf& leaf);
  void SiftDown(std::size_t at, const Leaf& leaf);

  std::vector<std::uint32_t>& places_;
  std::vector<Leaf> leaves_;
};

}  // namespace kvfabric
