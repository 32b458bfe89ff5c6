#pragma once

// KeyIdIndex: KeyId -> node number, without a copy of the KeyId (the nodes hold it). Open
// addressing with linear probing at a load of at most 5/8; KeyIds are uniform already. Owned by
// LeafLru; externally synchronised. 4 bytes a slot; O(1).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/block_key.h"

namespace kvfabric {

class KeyIdIndex {
 public:
  static constexpr std::uint32_t kNoNode = 0xFFFF'FFFF;

  // `id_of(node)` gives the KeyId of a node that is in the index.
  template <typename IdOf>
  std::uint32_t Find(const KeyId& id, const IdOf& id_of) const {
    if (slots_.empty()) return kNoNode;
    for (std::size_t at = id.hash() & mask_;; at = (at + 1) & mask_) {
      const std::uint32_t node = slots_[at];
      if (node == kNoNode || id_of(node) == id) return node;
    }
  }

  // `id` must not be in the index.
  template <typename IdOf>
  void Add(const KeyId& id, std::uint32_t node, const IdOf& id_of) {
    if ((count_ + 1) * 8 > slots_.size() * 5)
      Resize(slots_.empty() ? 64 : slots_.size() * 2, id_of);
    Put(id, node);
    ++count_;
  }

  // `id` must be in the index.
  template <typename IdOf>
  void Remove(const KeyId& id, const IdOf& id_of) {
    std::size_t hole = id.hash() & mask_;
    while (id_of(slots_[hole]) != id) hole = (hole + 1) & mask_;
    // Later members of the cluster move up, so that no search stops early at the hole.
    for (std::size_t at = (hole + 1) & mask_; slots_[at] != kNoNode; at = (at + 1) & mask_) {
      const std::size_t home = id_of(slots_[at]).hash() & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = kNoNode;
    --count_;
  }

  // Room for `count` nodes without growing.
  template <typename IdOf>
  void Reserve(std::size_t count, const IdOf& id_of) {
    std::size_t slots = 64;
    while (count * 8 > slots * 5) slots *= 2;
    if (slots > slots_.size()) Resize(slots, id_of);
  }

  std::size_t memory_bytes() const { return slots_.capacity() * sizeof(std::uint32_t); }

 private:
  void Put(const KeyId& id, std::uint32_t node) {
    std::size_t at = id.hash() & mask_;
    while (slots_[at] != kNoNode) at = (at + 1) & mask_;
    slots_[at] = node;
  }

  template <typename IdOf>
  void Resize(std::size_t slots, const IdOf& id_of) {
    std::vector<std::uint32_t> old(slots, kNoNode);
    old.swap(slots_);
    mask_ = slots - 1;
    for (const std::uint32_t node : old) {
      if (node != kNoNode) Put(id_of(node), node);
    }
  }

  std::vector<std::uint32_t> slots_;  // a power of two
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
};

}  // namespace kvfabric
