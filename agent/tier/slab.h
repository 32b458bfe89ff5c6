#pragma once

// Slab: one memfd cut into equal slots. Owned by DramArena, externally synchronised by it. A slab
// belongs to one tenant for its whole life; while it is empty its slot size may change.
// Invariant: a slot is handed out at most once until it is given back (checked always, since two
// owners of one slot would read each other's bytes). One bit and at most four bytes a slot.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/tier/memfd.h"
#include "common/check.h"
#include "common/clock.h"

namespace kvfabric {

class Slab {
 public:
  enum class State : std::uint8_t {
    kActive,
    kEmptying,  // gives no more slots; closed or cut anew when the last is back
    kClosing,   // out of use, but mapped by sessions that have not let go yet
  };

  Slab(std::shared_ptr<Memfd> memfd_in, std::string tenant_in)
      : memfd(std::move(memfd_in)), tenant(std::move(tenant_in)) {}

  bool empty() const { return used_ == 0; }
  bool full() const { return used_ == slots_; }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  std::uint32_t used() const { return used_; }

  // Only while empty.
  void Cut(std::uint64_t slot_bytes) {
    KVF_CHECK(empty(), "a slab with blocks in it was cut anew");
    slot_bytes_ = slot_bytes;
    slots_ = static_cast<std::uint32_t>(memfd->size_bytes() / slot_bytes);
    fresh_ = 0;
    free_.clear();
    taken_.assign(slots_, false);
  }

  // Offset of a slot; the slab must not be full.
  std::uint64_t Take() {
    KVF_CHECK(!full(), "no slot left in this slab");
    std::uint32_t slot = fresh_;
    if (free_.empty()) {
      ++fresh_;
    } else {
      slot = free_.back();  // the one used last: its cache lines and TLB entries are warm
      free_.pop_back();
    }
    KVF_CHECK(!taken_[slot], "slot handed out twice");
    taken_[slot] = true;
    ++used_;
    return slot * slot_bytes_;
  }

  void GiveBack(std::uint64_t offset) {
    const std::uint64_t slot = offset / slot_bytes_;
    KVF_CHECK(slot < slots_ && offset % slot_bytes_ == 0 && taken_[slot], "slot given back twice");
    taken_[slot] = false;
    --used_;
    free_.push_back(static_cast<std::uint32_t>(slot));
  }

  const std::shared_ptr<Memfd> memfd;
  const std::string tenant;
  State state = State::kActive;
  std::string wanted_by;            // kEmptying: the tenant it is emptied for
  Clock::TimePoint since;           // of the present state
  std::set<std::uint64_t> mappers;  // sessions that map it

 private:
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t fresh_ = 0;          // slots from here on were never used
  std::vector<std::uint32_t> free_;  // those before it that came back
  std::vector<bool> taken_;
};

}  // namespace kvfabric
