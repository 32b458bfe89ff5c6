#pragma once

// PinLedger counts how often each block is pinned, so that bytes shared by several leases (a
// system prompt under a hundred requests) count once. Owned by LeaseTable; externally
// synchronised. Open addressing, linear probing, at most 5/8 full; 24 bytes a slot; O(1).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/block_key.h"
#include "common/check.h"

namespace kvfabric {

class PinLedger {
 public:
  std::size_t size() const { return size_; }
  bool Contains(const KeyId& id) const { return !slots_.empty() && slots_[Probe(id)].count > 0; }

  // True when `id` was not pinned before.
  bool Add(const KeyId& id) {
    if ((size_ + 1) * 8 > slots_.size() * 5) Grow();
    Slot& slot = slots_[Probe(id)];
    if (slot.count++ > 0) return false;
    slot.id = id;
    ++size_;
    return true;
  }

  // True when it is pinned no longer.
  bool Remove(const KeyId& id) {
    KVF_CHECK(Contains(id), "a pin was dropped that was never taken");
    std::size_t hole = Probe(id);
    if (--slots_[hole].count > 0) return false;
    --size_;
    // Later members of the cluster move up, so that no search stops early at the hole.
    for (std::size_t at = Next(hole); slots_[at].count > 0; at = Next(at)) {
      const std::size_t home = Home(slots_[at].id);
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = Slot{};
    return true;
  }

 private:
  struct Slot {
    KeyId id;
    std::uint32_t count = 0;  // 0 = empty
  };

  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t Home(const KeyId& id) const { return id.hash() & mask(); }
  std::size_t Next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t Probe(const KeyId& id) const {
    std::size_t at = Home(id);
    while (slots_[at].count > 0 && slots_[at].id != id) at = Next(at);
    return at;
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.count > 0) slots_[Probe(slot.id)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t size_ = 0;
};

}  // namespace kvfabric
