#pragma once

// The engine-private halves of PinnedBlock and Reservation: what each of them must give back.
// Owned by them; see cache_engine.h.

#include <memory>
#include <utility>

#include "agent/engine/block_store.h"

namespace kvfabric {

class PinnedBlock::Handle {
 public:
  // What of a header changes while a block is here, as of pinning.
  struct Moment {
    std::int64_t last_touch_us = 0;
    bool has_other_holder = false;
  };

  // The entry has been pinned for it. `spill`: dropping this pin removes the block.
  Handle(std::shared_ptr<BlockStore> store, BlockEntry* entry, Moment moment, bool spill)
      : store_(std::move(store)), entry_(entry), moment_(moment), spill_(spill) {}
  ~Handle() {
    delete header_.load(std::memory_order_acquire);
    store_->Unpin(entry_, spill_);
  }
  Handle(const Handle&) = delete;  // would unpin twice
  Handle& operator=(const Handle&) = delete;

  // Constant while the pin holds; all but `moment_`'s fields are right.
  const BlockHeader& fixed() const { return entry_->header; }
  ByteSpan bytes() const { return {entry_->data, fixed().length_bytes}; }
  MemoryLocation location() const {
    return {.memfd_id = entry_->memfd_id, .offset = entry_->offset};
  }

  // Copied when first asked for: most pins are only read.
  const BlockHeader& header() const {
    const BlockHeader* present = header_.load(std::memory_order_acquire);
    if (present != nullptr) return *present;
    auto made = std::make_unique<BlockHeader>(fixed());
    made->last_touch_us = moment_.last_touch_us;
    made->has_other_holder = moment_.has_other_holder;
    // Another thread may have been first; then its copy stays.
    if (!header_.compare_exchange_strong(present, made.get(), std::memory_order_acq_rel)) {
      return *present;
    }
    return *made.release();
  }

 private:
  const std::shared_ptr<BlockStore> store_;
  BlockEntry* const entry_;
  const Moment moment_;
  const bool spill_;
  mutable std::atomic<const BlockHeader*> header_{nullptr};  // owned
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
