#include "agent/block/block_table.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMostShards = 64;  // at most 256: TagOf leaves out eight bits
constexpr std::size_t kBlocksAShard = 256;

}  // namespace

BlockEntry* BlockTable::Shard::Find(const KeyId& id) {
  const std::uint32_t tag = TagOf(id);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = tag & mask; slots_[at].entry != 0; at = (at + 1) & mask) {
    if (slots_[at].tag != tag) continue;
    BlockEntry* entry = At(slots_[at].entry - 1);
    if (entry->header.id == id) return entry;
  }
  return nullptr;
}

void BlockTable::Shard::Insert(BlockEntry* entry) {
  // The table has room for all blocks; but keys chosen to meet in one shard need more in it.
  if ((size_ + 1) * 4 > slots_.size() * 3) Grow(slots_.size() * 2);
  Place({.tag = TagOf(entry->header.id), .entry = entry->self + 1});
  entry->state = BlockEntry::State::kCommitted;
  ++size_;
}

void BlockTable::Shard::Remove(BlockEntry* entry) {
  KVF_CHECK(entry->state == BlockEntry::State::kCommitted, "block removed twice");
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = TagOf(entry->header.id) & mask;
  while (slots_[hole].entry != entry->self + 1) hole = (hole + 1) & mask;
  // Later members of the cluster move up, so that no search stops early at the hole.
  for (std::size_t at = (hole + 1) & mask; slots_[at].entry != 0; at = (at + 1) & mask) {
    const std::size_t home = slots_[at].tag & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = Slot{};
  entry->state = BlockEntry::State::kDraining;
  --size_;
}

void BlockTable::Shard::Place(Slot slot) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = slot.tag & mask;
  while (slots_[at].entry != 0) at = (at + 1) & mask;
  slots_[at] = slot;
}

void BlockTable::Shard::Grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.entry != 0) Place(slot);
  }
}

BlockTable::BlockTable(std::size_t max_blocks)
    : max_blocks_(std::max<std::size_t>(max_blocks, 1)),
      shard_count_(
          std::bit_floor(std::clamp<std::size_t>(max_blocks_ / kBlocksAShard, 1, kMostShards))),
      shards_(std::make_unique<Shard[]>(shard_count_)) {
  const std::size_t slots =
      std::bit_ceil(std::max<std::size_t>(max_blocks_ / shard_count_ * 2, 16));
  for (std::size_t i = 0; i < shard_count_; ++i) {
    MutexLock lock(shards_[i].mu);
    shards_[i].Grow(slots);
  }
}

BlockEntry* BlockTable::Acquire(const KeyId& id) {
  if (in_use_.fetch_add(1, std::memory_order_relaxed) >= max_blocks_) {
    in_use_.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mu);
  if (shard.free_.empty()) {
    const auto first = static_cast<std::uint32_t>(shard.chunks_.size() * Shard::kChunk);
    shard.chunks_.push_back(std::make_unique<BlockEntry[]>(Shard::kChunk));
    for (std::uint32_t i = Shard::kChunk; i-- > 0;) {
      shard.chunks_.back()[i].self = first + i;
      shard.free_.push_back(first + i);
    }
  }
  BlockEntry* entry = shard.At(shard.free_.back());
  shard.free_.pop_back();
  entry->state = BlockEntry::State::kReserved;
  entry->header.id = id;
  return entry;
}

void BlockTable::Release(BlockEntry* entry) {
  BlockHeader header;  // strings are freed after the lock is
  {
    Shard& shard = ShardOf(entry->header.id);
    MutexLock lock(shard.mu);
    KVF_CHECK(entry->state == BlockEntry::State::kReserved ||
                  entry->state == BlockEntry::State::kDraining,
              "block released while others can find it");
    KVF_CHECK(entry->pins() == 0, "block released while it is pinned");
    std::swap(header, entry->header);
    entry->data = nullptr;
    entry->tenant = nullptr;
    entry->state = BlockEntry::State::kFree;
    entry->has_other_holder = false;
    entry->order = BlockEntry::kNoOrder;
    entry->word.store(0, std::memory_order_relaxed);
    ++entry->generation;
    shard.free_.push_back(entry->self);
  }
  in_use_.fetch_sub(1, std::memory_order_relaxed);
}

std::size_t BlockTable::memory_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < shard_count_; ++i) {
    Shard& shard = shards_[i];
    MutexLock lock(shard.mu);
    bytes += shard.chunks_.size() * Shard::kChunk * sizeof(BlockEntry) +
             shard.slots_.size() * sizeof(Shard::Slot) +
             shard.free_.capacity() * sizeof(std::uint32_t);
  }
  return bytes;
}

}  // namespace kvfabric
