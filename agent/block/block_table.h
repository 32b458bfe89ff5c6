#pragma once

// BlockTable: KeyId -> the block's entry, for the blocks of one pool on this node. Sharded by
// KeyId, fixed capacity, entries at fixed addresses.
//
// Owned by the engine's block store; any thread. An entry's life:
//   Acquire      Reserved: has memory, is filled by one writer, found by nobody
//   Insert       Committed: found by Find, pinned and unpinned by readers
//   Remove       Draining: found no more; the bytes stay until the last pin goes
//   Release      free; its generation grows by one
// Invariants: (1) in the index iff Committed; (2) an entry is released only with no pin; (3) pins
// are added only under the shard's lock while Committed, so once Draining the count only falls;
// (4) whoever brings the count of a Draining entry to zero releases it, nobody else.
// About 210 bytes an entry and 16 in the index, besides the key and the metadata.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/block/block_header.h"
#include "common/block_key.h"
#include "common/mutex.h"

namespace kvfabric {

struct TenantAccount;  // the owner's books; opaque here

struct BlockEntry {
  enum class State : std::uint8_t { kFree, kReserved, kCommitted, kDraining };

  // Low 24 bits of `word`: pins. Above: flags.
  static constexpr std::uint32_t kPinMask = (1U << 24U) - 1;
  static constexpr std::uint32_t kDraining = 1U << 24U;
  static constexpr std::uint32_t kTransient = 1U << 25U;  // goes at its last unpin
  static constexpr std::uint32_t kSpilling = 1U << 26U;   // a spill target has it
  static constexpr std::uint32_t kNoOrder = 0xFFFF'FFFF;

  // Written while Reserved, constant while Committed or Draining; but last_touch_us and
  // has_other_holder, which live below.
  BlockHeader header;
  std::byte* data = nullptr;
  std::uint64_t memfd_id = 0;
  std::uint64_t offset = 0;
  TenantAccount* tenant = nullptr;
  std::uint32_t generation = 0;

  // Pins and flags. Adding a pin and setting a flag happen under the shard's lock; dropping a pin
  // does not (acq_rel: the reads of a reader come before the release of the memory).
  std::atomic<std::uint32_t> word{0};

  // Guarded by the shard's lock.
  State state = State::kFree;
  bool has_other_holder = false;
  std::int64_t last_touch_us = 0;

  // Handle in the eviction order; guarded by the owner's order lock.
  std::uint32_t order = kNoOrder;

  std::uint32_t self = 0;  // its number in its shard; the table's own

  std::uint32_t pins() const { return word.load(std::memory_order_acquire) & kPinMask; }
};

class BlockTable {
 public:
  class Shard {
   public:
    Mutex mu;

    // Committed entries only; nullptr = none. The caller compares key and lane.
    BlockEntry* Find(const KeyId& id) REQUIRES(mu);
    // No entry with its id may be there.
    void Insert(BlockEntry* entry) REQUIRES(mu);
    void Remove(BlockEntry* entry) REQUIRES(mu);
    std::size_t size() const REQUIRES(mu) { return size_; }

    template <typename Visit>
    void ForEach(const Visit& visit) REQUIRES(mu) {
      for (const Slot& slot : slots_) {
        if (slot.entry != 0) visit(*At(slot.entry - 1));
      }
    }

   private:
    friend class BlockTable;
    static constexpr std::uint32_t kChunk = 64;
    struct Slot {
      std::uint32_t tag = 0;    // bits of the id's hash, home position included
      std::uint32_t entry = 0;  // number + 1; 0 = empty
    };
    static std::uint32_t TagOf(const KeyId& id) {
      return static_cast<std::uint32_t>(id.hash() >> 8U);  // the lowest bits chose the shard
    }
    BlockEntry* At(std::uint32_t number) REQUIRES(mu) {
      return &chunks_[number / kChunk][number % kChunk];
    }
    void Place(Slot slot) REQUIRES(mu);
    void Grow(std::size_t slots) REQUIRES(mu);

    std::vector<std::unique_ptr<BlockEntry[]>> chunks_ GUARDED_BY(mu);
    std::vector<std::uint32_t> free_ GUARDED_BY(mu);
    std::vector<Slot> slots_ GUARDED_BY(mu);  // a power of two
    std::size_t size_ GUARDED_BY(mu) = 0;
  };

  // Index space for `max_blocks` is made at once; entries as they are first needed.
  explicit BlockTable(std::size_t max_blocks);
  BlockTable(const BlockTable&) = delete;  // pins point into it
  BlockTable& operator=(const BlockTable&) = delete;

  Shard& ShardOf(const KeyId& id) { return shards_[id.hash() & (shard_count_ - 1)]; }
  std::size_t shard_count() const { return shard_count_; }
  Shard& shard(std::size_t number) { return shards_[number]; }

  // A Reserved entry for a block with that id; nullptr when max_blocks are in use.
  BlockEntry* Acquire(const KeyId& id);
  // Reserved or Draining, without pins.
  void Release(BlockEntry* entry);

  std::size_t in_use() const { return in_use_.load(std::memory_order_relaxed); }
  std::size_t max_blocks() const { return max_blocks_; }
  std::size_t memory_bytes() const;

 private:
  const std::size_t max_blocks_;
  const std::size_t shard_count_;
  const std::unique_ptr<Shard[]> shards_;
  std::atomic<std::size_t> in_use_{0};
};

}  // namespace kvfabric
