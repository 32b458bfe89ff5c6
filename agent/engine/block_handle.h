#pragma once

// The engine-private halves of PinnedBlock and Reservation: what each of them must give back.
// Owned by them; see cache_engine.h.

#include <memory>
#include <utility>

#include "agent/engine/block_store.h"

namespace kvfabric {

class PinnedBlock::Handle {
 public:
  // The entry has been pinned for it. `spill`: dropping this pin removes the block.
  Handle(std::shared_ptr<BlockStore> store, BlockEntry* entry, bool spill)
      : header(entry->header), store_(std::move(store)), entry_(entry), spill_(spill) {}
  ~Handle() { store_->Unpin(entry_, spill_); }
  Handle(const Handle&) = delete;  // would unpin twice
  Handle& operator=(const Handle&) = delete;

  ByteSpan bytes() const { return {entry_->data, header.length_bytes}; }
  MemoryLocation location() const {
    return {.memfd_id = entry_->memfd_id, .offset = entry_->offset};
  }

  BlockHeader header;  // with last touch and flags as of pinning

 private:
  const std::shared_ptr<BlockStore> store_;
  BlockEntry* const entry_;
  const bool spill_;
};

class Reservation::Slot {
 public:
  Slot(std::shared_ptr<BlockStore> store_in, BlockEntry* entry_in, BlockOrigin origin_in)
      : store(std::move(store_in)), entry(entry_in), origin(origin_in) {}
  ~Slot() {
    if (entry != nullptr) store->Free(entry);
  }
  Slot(const Slot&) = delete;  // would give the memory back twice
  Slot& operator=(const Slot&) = delete;

  const std::shared_ptr<BlockStore> store;
  BlockEntry* entry;  // nullptr once committed
  const BlockOrigin origin;
};

}  // namespace kvfabric
