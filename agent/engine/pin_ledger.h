#pragma once

// PinLedger counts how often each block is pinned, so that bytes shared by several leases (a
// system prompt under a hundred requests) count once. A block is known by where its bytes lie,
// which no other block's do while it is pinned, and not by its KeyId: one that was deleted and put
// again while the first is still leased is another block, perhaps of another size. Owned by
// LeaseTable; externally synchronised. Open addressing, linear probing, at most 5/8 full; 16 bytes
// a slot; O(1).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"

namespace kvfabric {

class PinLedger {
 public:
  std::size_t size() const { return size_; }
  bool Contains(const std::byte* bytes) const {
    return !slots_.empty() && slots_[Probe(bytes)].count > 0;
  }

  // True when `bytes` was not pinned before.
  bool Add(const std::byte* bytes) {
    if ((size_ + 1) * 8 > slots_.size() * 5) Grow();
    Slot& slot = slots_[Probe(bytes)];
    if (slot.count++ > 0) return false;
    slot.bytes = bytes;
    ++size_;
    return true;
  }

  // True when it is pinned no longer.
  bool Remove(const std::byte* bytes) {
    KVF_CHECK(Contains(bytes), "a pin was dropped that was never taken");
    std::size_t hole = Probe(bytes);
    if (--slots_[hole].count > 0) return false;
    --size_;
    // Later members of the cluster move up, so that no search stops early at the hole.
    for (std::size_t at = Next(hole); slots_[at].count > 0; at = Next(at)) {
      const std::size_t home = Home(slots_[at].bytes);
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = Slot{};
    return true;
  }

 private:
  struct Slot {
    const std::byte* bytes = nullptr;
    std::uint32_t count = 0;  // 0 = empty
  };

  std::size_t mask() const { return slots_.size() - 1; }
  // Blocks lie at even distances: the product's upper half spreads them.
  std::size_t Home(const std::byte* bytes) const {
    const std::uint64_t product = reinterpret_cast<std::uintptr_t>(bytes) * 0x9E3779B97F4A7C15U;
    return (product >> 32U) & mask();
  }
  std::size_t Next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t Probe(const std::byte* bytes) const {
    std::size_t at = Home(bytes);
    while (slots_[at].count > 0 && slots_[at].bytes != bytes) at = Next(at);
    return at;
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.count > 0) slots_[Probe(slot.bytes)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t size_ = 0;
};

}  // namespace kvfabric
