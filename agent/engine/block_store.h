#pragma once

// BlockStore: the state of one pool's engine: table, eviction order, accounts and memory. Apart
// from the engine because pins and reservations may outlive it: they hold the store by shared_ptr
// until the last bytes are given back.
//
// Any thread. Lock order: order_.mu, then one shard's lock, then the arena's; nothing is copied,
// freed or called back under a lock, but for the observer.
//
// A committed block is in exactly one of three conditions, changed under its shard's lock:
//   ordered    in the eviction order; told to the observer
//   transient  fetched for readers; freed at its last unpin; never told
//   spilling   taken out of the order, pinned by the spill target; removed when that pin goes
// An ordered block is taken out of the order and out of the table under order_.mu in one go, so
// whoever holds order_.mu sees both agree.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/block/block_table.h"
#include "agent/engine/byte_account.h"
#include "agent/engine/cache_engine.h"
#include "agent/engine/engine_counters.h"
#include "agent/engine/eviction_order.h"
#include "agent/tier/dram_arena.h"

namespace kvfabric {

class BlockStore : public std::enable_shared_from_this<BlockStore> {
 public:
  static std::size_t DefaultMaxBlocks(std::uint64_t capacity_bytes);
  static Result<std::shared_ptr<BlockStore>> Create(const CacheEngine::Options& options,
                                                    const CacheEngine::Environment& environment);
  // Public for make_shared only.
  BlockStore(const CacheEngine::Options& options, const CacheEngine::Environment& environment,
             std::unique_ptr<EvictionOrder> order);
  BlockStore(const BlockStore&) = delete;  // entries and pins point into it
  BlockStore& operator=(const BlockStore&) = delete;

  void SetLimits(const CacheEngine::Options& options);
  void SetObserver(BlockObserver* observer) { observer_.store(observer); }
  // Called without locks when a spilled block has left.
  void SetSpillEnded(std::function<void()> spill_ended) { spill_ended_ = std::move(spill_ended); }
  // Forgets the observer and every block; what is pinned stays readable. No commit succeeds after.
  void Close();

  // --- Writing (block_store.cc) ---
  enum class Refusal : std::uint8_t { kNone, kFinal, kNoBlockEntry, kQuota, kCapacity, kArena };
  struct Attempt {
    Refusal refusal = Refusal::kNone;
    Status status;
    BlockEntry* entry = nullptr;
  };
  // Limits, namespace, and whether the block is here already.
  Status CheckHeader(const BlockHeader& header, BlockOrigin origin);
  // One try to get entry, bytes and memory; `header` is moved from on success only.
  Attempt TryReserve(BlockHeader& header, BlockOrigin origin, TenantAccount* tenant,
                     DramArena::Fit fit);
  TenantAccount* TenantFor(const std::string& name) { return order_->TenantFor(name); }
  Result<PinnedBlock> Commit(BlockEntry* entry, BlockOrigin origin, std::uint64_t computed);
  // Gives a reserved or drained entry and its memory back.
  void Free(BlockEntry* entry);

  // --- Reading (block_store.cc) ---
  // `key` nullptr = any.
  std::optional<PinnedBlock> Pin(const KeyId& id, const std::string_view* key, Lane lane);
  void Unpin(BlockEntry* entry, bool spill);
  bool Contains(const KeyId& id) const;
  bool ContainsKept(const KeyId& id) const;
  void Touch(const std::vector<KeyId>& ids);

  // --- Leaving (block_store_removal.cc) ---
  enum class Eviction : std::uint8_t {
    kDone,
    kRefused,  // the coldest leaves are pinned; trying again goes on with others
    kNone,     // no leaf can go
    kPaused,   // the spill queue is full, and there is no need to drop yet
  };
  // Evicts one block with all its lanes: of `only`, or the coldest of all. `now_us` is the same
  // for one round. With a target, leaves that may be spilled are offered to it.
  Eviction EvictOne(TenantAccount* only, SpillTarget* target, std::int64_t now_us);
  bool Delete(const KeyId& id);
  void Clear();
  void SetHasOtherHolder(const KeyId& id, bool value);
  bool Keep(const KeyId& id);
  void AddWarmth(std::map<std::uint64_t, ArenaUser::Warmth>& by_memfd) const;
  void EmptyMemfd(std::uint64_t memfd_id);

  std::optional<Clock::Duration> ColdestAge(bool spillable) const;
  std::vector<BlockHeader> Snapshot(const std::vector<std::uint32_t>& slots) const;
  EngineStats Stats();

  ByteAccount& bytes() { return bytes_; }
  EngineCounters& counters() { return counters_; }
  DramArena& arena() { return arena_; }
  std::int64_t NowUs() const;

 private:
  using Shard = BlockTable::Shard;
  struct Harvest;  // what one eviction took

  static std::uint64_t ChargeOf(const BlockHeader& header);
  static bool IsOrdered(const BlockEntry& entry) { return entry.order != BlockEntry::kNoOrder; }
  Status Publish(BlockEntry* entry, BlockOrigin origin, bool travelled);
  Status PublishTransient(BlockEntry* entry);
  Status Collides(const BlockEntry& present, const BlockHeader& header);
  PinnedBlock MakePin(BlockEntry* entry, std::int64_t touch_us, bool other_holder, bool spill);
  void EndSpill(BlockEntry* entry);
  void UnpinTransient(BlockEntry* entry);
  void AddPin(BlockEntry* entry);
  void Forget(BlockEntry* entry, Shard& shard, std::vector<BlockEntry*>& freed) REQUIRES(shard.mu);
  bool TakeVictim(const Victim& victim, SpillTarget* target, Harvest& harvest) REQUIRES(order_->mu);
  void TakeOne(BlockEntry* entry, Shard& shard, Harvest& harvest) REQUIRES(order_->mu, shard.mu);
  template <typename Choose>
  void RemoveEach(const Choose& choose, bool with_lanes);
  bool RemoveOrdered(const KeyId& id, std::vector<BlockEntry*>& freed) REQUIRES(order_->mu);

  // Constant after construction.
  const std::string pool_uid_;
  const std::string pool_name_;
  DramArena& arena_;    // borrowed; outlives every pin
  const Clock& clock_;  // borrowed
  const std::unique_ptr<EvictionOrder> order_;
  std::function<void()> spill_ended_;

  // Provide their own synchronisation.
  mutable BlockTable table_;
  ByteAccount bytes_;
  EngineCounters counters_;
  std::atomic<BlockObserver*> observer_{nullptr};  // read under a shard's lock
  std::atomic<bool> closed_{false};                // read under a shard's lock
};

}  // namespace kvfabric
