// The half of BlockStore that takes blocks out: eviction, spill, delete, emptying of memfds; and
// what looks over all blocks.

#include <algorithm>
#include <utility>

#include "agent/engine/block_handle.h"
#include "agent/engine/block_store.h"

namespace kvfabric {

struct BlockStore::Harvest {
  bool spill = false;   // offer what may be spilled
  bool paused = false;  // nothing was taken: the spill queue is full
  std::vector<std::pair<TenantAccount*, PolicyHandle>> detached;
  std::vector<BlockEntry*> freed;
  struct Spilled {
    BlockEntry* entry = nullptr;
    bool other_holder = false;
    std::int64_t touch_us = 0;
  };
  std::vector<Spilled> spilled;
  std::size_t blocks = 0;
  std::uint64_t bytes = 0;
};

// Out of the table; free at once unless somebody reads it.
void BlockStore::Forget(BlockEntry* entry, Shard& shard, std::vector<BlockEntry*>& freed) {
  shard.Remove(entry);
  const bool told = (entry->word.load() & BlockEntry::kTransient) == 0;
  if (BlockObserver* observer = observer_.load(); told && observer != nullptr) {
    observer->OnRemoved(entry->header);
  }
  const std::uint32_t before =
      entry->word.fetch_or(BlockEntry::kDraining, std::memory_order_acq_rel);
  if ((before & BlockEntry::kPinMask) == 0) freed.push_back(entry);
}

BlockStore::Eviction BlockStore::EvictOne(TenantAccount* only, SpillTarget* target,
                                          std::int64_t now_us) {
  Harvest harvest;
  EvictionOrder::Choice choice;
  {
    MutexLock order(order_->mu);
    choice = order_->NextVictim(only, now_us, [&](const Victim& victim) NO_THREAD_SAFETY_ANALYSIS {
      return TakeVictim(victim, target, harvest);
    });
    for (const auto& [tenant, handle] : harvest.detached) order_->Erase(tenant, handle);
  }
  if (harvest.paused) return Eviction::kPaused;
  if (choice.outcome == EvictionPolicy::Outcome::kRefused) return Eviction::kRefused;
  if (choice.outcome == EvictionPolicy::Outcome::kNone) return Eviction::kNone;
  for (BlockEntry* entry : harvest.freed) Free(entry);
  counters_.Add(EngineCounters::kEvicted, harvest.blocks);
  counters_.Add(EngineCounters::kEvictedBytes, harvest.bytes);
  for (const Harvest::Spilled& block : harvest.spilled) {
    const std::uint64_t charge = ChargeOf(block.entry->header);
    if (target->Take(MakePin(block.entry, block.touch_us, block.other_holder, true))) {
      counters_.Add(EngineCounters::kSpilled);
    } else {
      counters_.Add(EngineCounters::kEvicted);
      counters_.Add(EngineCounters::kEvictedBytes, charge);
    }
  }
  return Eviction::kDone;
}

// Runs inside the policy: takes the victim and its other lanes out of everything but the policy.
bool BlockStore::TakeVictim(const Victim& victim, SpillTarget* target, Harvest& harvest) {
  harvest.spill = false;
  std::vector<KeyId> lanes;
  {
    Shard& shard = table_.ShardOf(victim.id);
    MutexLock lock(shard.mu);
    BlockEntry* entry = shard.Find(victim.id);
    if (entry == nullptr || entry->pins() > 0) return false;
    if (target != nullptr && victim.spillable()) {
      harvest.spill = !bytes_.SpillFull(ChargeOf(entry->header));
      // Below the high watermark there is time to wait for the peers, if there is one to wait for:
      // a block larger than the whole queue is dropped.
      harvest.paused = !harvest.spill && !bytes_.above_high() && bytes_.pending_spill() > 0;
      if (harvest.paused) return true;
    }
    lanes = order_->OtherLanes(entry->header);
    if (lanes.empty()) {
      TakeOne(entry, shard, harvest);
      return true;
    }
  }
  for (const KeyId& id : lanes) {
    Shard& shard = table_.ShardOf(id);
    MutexLock lock(shard.mu);
    const BlockEntry* entry = shard.Find(id);
    if (entry != nullptr && entry->pins() > 0) return false;
  }
  lanes.insert(lanes.begin(), victim.id);
  for (const KeyId& id : lanes) {
    Shard& shard = table_.ShardOf(id);
    MutexLock lock(shard.mu);
    BlockEntry* entry = shard.Find(id);
    const bool gone = entry == nullptr || !IsOrdered(*entry);
    if (id == victim.id && (gone || entry->pins() > 0)) return false;  // pinned just now
    if (!gone) TakeOne(entry, shard, harvest);
  }
  return true;
}

void BlockStore::TakeOne(BlockEntry* entry, Shard& shard, Harvest& harvest) {
  harvest.detached.push_back({entry->tenant, order_->Detach(entry)});
  const std::uint64_t charge = ChargeOf(entry->header);
  const bool spillable = !entry->has_other_holder && !entry->header.spilled_in;
  if (harvest.spill && spillable && bytes_.TakeSpill(charge)) {
    entry->word.fetch_or(BlockEntry::kSpilling, std::memory_order_acq_rel);
    AddPin(entry);
    harvest.spilled.push_back({.entry = entry,
                               .other_holder = entry->has_other_holder,
                               .touch_us = entry->last_touch_us});
    return;
  }
  ++harvest.blocks;
  harvest.bytes += charge;
  Forget(entry, shard, harvest.freed);
}

bool BlockStore::RemoveOrdered(const KeyId& id, std::vector<BlockEntry*>& freed) {
  Shard& shard = table_.ShardOf(id);
  MutexLock lock(shard.mu);
  BlockEntry* entry = shard.Find(id);
  if (entry == nullptr) return false;
  if (IsOrdered(*entry)) {
    TenantAccount* tenant = entry->tenant;
    order_->Erase(tenant, order_->Detach(entry));
  }
  Forget(entry, shard, freed);
  return true;
}

bool BlockStore::Delete(const KeyId& id) {
  std::vector<BlockEntry*> freed;
  bool found = false;
  {
    MutexLock order(order_->mu);
    found = RemoveOrdered(id, freed);
  }
  for (BlockEntry* entry : freed) Free(entry);
  if (found) counters_.Add(EngineCounters::kDeleted);
  return found;
}

// Removes every block that `choose` wants, a shard at a time, the order lock for one block at a
// time; with its other lanes if asked for.
template <typename Choose>
void BlockStore::RemoveEach(const Choose& choose, bool with_lanes) {
  for (std::size_t i = 0; i < table_.shard_count(); ++i) {
    std::vector<KeyId> ids;
    {
      Shard& shard = table_.shard(i);
      MutexLock lock(shard.mu);
      shard.ForEach([&](const BlockEntry& entry) {
        if (choose(entry)) ids.push_back(entry.header.id);
      });
    }
    for (const KeyId& id : ids) {
      std::vector<BlockEntry*> freed;
      {
        MutexLock order(order_->mu);
        std::vector<KeyId> lanes;
        {
          Shard& shard = table_.ShardOf(id);
          MutexLock lock(shard.mu);
          const BlockEntry* entry = shard.Find(id);
          if (entry == nullptr || !choose(*entry)) continue;
          if (with_lanes) lanes = order_->OtherLanes(entry->header);
        }
        RemoveOrdered(id, freed);
        for (const KeyId& lane : lanes) RemoveOrdered(lane, freed);
      }
      for (BlockEntry* entry : freed) Free(entry);
    }
  }
}

void BlockStore::Clear() {
  RemoveEach([](const BlockEntry& entry) { return entry.pins() == 0; }, false);
}

void BlockStore::Close() {
  closed_.store(true);
  observer_.store(nullptr);
  // Takes every shard's lock after the stores: no commit and no call of the observer is under way.
  RemoveEach([](const BlockEntry&) { return true; }, false);
}

void BlockStore::EmptyMemfd(std::uint64_t memfd_id) {
  RemoveEach([memfd_id](const BlockEntry& entry) { return entry.memfd_id == memfd_id; }, true);
}

void BlockStore::SetHasOtherHolder(const KeyId& id, bool value) {
  MutexLock order(order_->mu);
  Shard& shard = table_.ShardOf(id);
  MutexLock lock(shard.mu);
  BlockEntry* entry = shard.Find(id);
  if (entry == nullptr) return;
  entry->has_other_holder = value;
  if (!IsOrdered(*entry)) return;
  entry->tenant->policy->SetHasOtherHolder(PolicyHandle{entry->order}, value);
}

bool BlockStore::Keep(const KeyId& id) {
  MutexLock order(order_->mu);
  Shard& shard = table_.ShardOf(id);
  MutexLock lock(shard.mu);
  BlockEntry* entry = shard.Find(id);
  if (entry == nullptr) return false;
  if ((entry->word.load() & BlockEntry::kTransient) == 0) return true;
  entry->word.fetch_and(~BlockEntry::kTransient, std::memory_order_acq_rel);
  bytes_.EndTransient(ChargeOf(entry->header));
  entry->has_other_holder = true;
  order_->Insert(entry, true, NowUs());
  if (BlockObserver* observer = observer_.load(); observer != nullptr) {
    BlockHeader kept = entry->header;
    kept.has_other_holder = true;
    kept.last_touch_us = entry->last_touch_us;
    observer->OnCommitted(kept, BlockOrigin::kTransient);
  }
  return true;
}

void BlockStore::AddWarmth(std::map<std::uint64_t, ArenaUser::Warmth>& by_memfd) const {
  for (std::size_t i = 0; i < table_.shard_count(); ++i) {
    Shard& shard = table_.shard(i);
    MutexLock lock(shard.mu);
    shard.ForEach([&](const BlockEntry& entry) {
      ArenaUser::Warmth& warmth = by_memfd[entry.memfd_id];
      warmth.newest_touch_us = std::max(warmth.newest_touch_us, entry.last_touch_us);
      if (entry.pins() > 0) ++warmth.pinned_blocks;
    });
  }
}

std::optional<Clock::Duration> BlockStore::ColdestAge(bool spillable) const {
  std::optional<std::int64_t> coldest_us;
  {
    MutexLock order(order_->mu);
    coldest_us = order_->ColdestUs(spillable);
  }
  if (!coldest_us.has_value()) return std::nullopt;
  return std::chrono::microseconds(std::max<std::int64_t>(NowUs() - *coldest_us, 0));
}

std::vector<BlockHeader> BlockStore::Snapshot(const std::vector<std::uint32_t>& slots) const {
  std::vector<bool> wanted;
  for (const std::uint32_t slot : slots) {
    if (slot >= wanted.size()) wanted.resize(slot + std::size_t{1});
    wanted[slot] = true;
  }
  std::vector<BlockHeader> headers;
  for (std::size_t i = 0; i < table_.shard_count(); ++i) {
    Shard& shard = table_.shard(i);
    MutexLock lock(shard.mu);
    shard.ForEach([&](const BlockEntry& entry) {
      const BlockHeader& header = entry.header;
      if ((entry.word.load() & BlockEntry::kTransient) != 0) return;
      if (!slots.empty() && (header.slot >= wanted.size() || !wanted[header.slot])) return;
      headers.push_back(header);
      headers.back().has_other_holder = entry.has_other_holder;
      headers.back().last_touch_us = entry.last_touch_us;
    });
  }
  return headers;
}

EngineStats BlockStore::Stats() {
  EngineStats stats;
  stats.capacity_bytes = bytes_.capacity();
  stats.used_bytes = bytes_.used();
  stats.blocks = table_.in_use();
  stats.pinned_bytes = bytes_.pinned();
  stats.transient_bytes = bytes_.transient();
  stats.pending_spill_bytes = bytes_.pending_spill();
  stats.puts = counters_.Get(EngineCounters::kPuts);
  stats.already_exists = counters_.Get(EngineCounters::kAlreadyExists);
  stats.no_space = counters_.Get(EngineCounters::kNoSpace);
  stats.evicted = counters_.Get(EngineCounters::kEvicted);
  stats.evicted_bytes = counters_.Get(EngineCounters::kEvictedBytes);
  stats.spilled = counters_.Get(EngineCounters::kSpilled);
  stats.deleted = counters_.Get(EngineCounters::kDeleted);
  stats.checksum_mismatches = counters_.Get(EngineCounters::kChecksumMismatches);
  stats.index_bytes = table_.memory_bytes();
  {
    MutexLock order(order_->mu);
    stats.index_bytes += order_->memory_bytes();
  }
  counters_.ShowUse(stats.used_bytes, stats.pinned_bytes, stats.blocks);
  return stats;
}

}  // namespace kvfabric
