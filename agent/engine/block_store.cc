#include "agent/engine/block_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/engine/block_handle.h"
#include "common/check.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMostExpectedBlocks = std::size_t{1} << 20U;
constexpr std::size_t kTouchesAtOnce = 64;

std::size_t MaxBlocks(const CacheEngine::Options& options) {
  if (options.max_blocks > 0) return options.max_blocks;
  return BlockStore::DefaultMaxBlocks(options.capacity_bytes);
}

std::string BlockName(const BlockHeader& header) { return "block " + header.id.ToString(); }

}  // namespace

std::size_t BlockStore::DefaultMaxBlocks(std::uint64_t capacity_bytes) {
  constexpr std::size_t least = 65'536;
  constexpr std::uint64_t bytes_an_entry = 16'384;
  return std::max<std::size_t>(least, capacity_bytes / bytes_an_entry);
}

Result<std::shared_ptr<BlockStore>> BlockStore::Create(
    const CacheEngine::Options& options, const CacheEngine::Environment& environment) {
  const std::size_t expected =
      std::min(MaxBlocks(options) / (options.quotas.size() + 1), kMostExpectedBlocks);
  KVF_ASSIGN_OR_RETURN(std::unique_ptr<EvictionOrder> order,
                       EvictionOrder::Create(options.eviction_policy, expected));
  auto store = std::make_shared<BlockStore>(options, environment, std::move(order));
  store->SetLimits(options);
  return store;
}

BlockStore::BlockStore(const CacheEngine::Options& options,
                       const CacheEngine::Environment& environment,
                       std::unique_ptr<EvictionOrder> order)
    : pool_uid_(options.pool_uid),
      pool_name_(options.pool_name),
      arena_(*environment.arena),
      clock_(environment.clock != nullptr ? *environment.clock : Clock::System()),
      order_(std::move(order)),
      table_(MaxBlocks(options)),
      counters_(environment.metrics, options.pool_name) {}

void BlockStore::SetLimits(const CacheEngine::Options& options) {
  bytes_.SetLimits(options.capacity_bytes, options.high_watermark_percent,
                   options.low_watermark_percent);
  std::map<std::string, std::uint64_t> quotas;
  for (const TenantQuota& quota : options.quotas) quotas[quota.tenant] = quota.dram_bytes;
  order_->SetQuotas(std::move(quotas));
}

std::int64_t BlockStore::NowUs() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(clock_.Now().time_since_epoch())
      .count();
}

std::uint64_t BlockStore::ChargeOf(const BlockHeader& header) {
  return RoundUpToSlot(header.length_bytes) + header.metadata.size();
}

Status BlockStore::CheckHeader(const BlockHeader& header, BlockOrigin origin) {
  if (header.ns == nullptr || header.id.none()) {
    return InvalidArgument("block: reserve: header without namespace or id");
  }
  if (header.ns->pool_uid != pool_uid_) {
    return InvalidArgument(BlockName(header) + ": reserve: of pool " + header.ns->pool_uid +
                           ", this is pool " + pool_uid_);
  }
  KVF_RETURN_IF_ERROR(ValidateKey(header.key));
  if (header.metadata.size() > kMaxBlockMetadataBytes) {
    return InvalidArgument(BlockName(header) + ": reserve: metadata too long (" +
                           std::to_string(header.metadata.size()) + " bytes, limit " +
                           std::to_string(kMaxBlockMetadataBytes) + ")");
  }
  if (header.length_bytes == 0 || header.length_bytes > arena_.memfd_bytes()) {
    return InvalidArgument(BlockName(header) + ": reserve: length of " +
                           std::to_string(header.length_bytes) + " bytes (at least 1, at most " +
                           std::to_string(arena_.memfd_bytes()) +
                           "; a larger arenaBytes takes larger ones)");
  }
  Status present;
  {
    Shard& shard = table_.ShardOf(header.id);
    MutexLock lock(shard.mu);
    const BlockEntry* entry = shard.Find(header.id);
    if (entry != nullptr) present = Collides(*entry, header);
  }
  // A repeated put is a use; a copy that a peer offers is none.
  const bool exists = present.code() == StatusCode::kAlreadyExists;
  if (exists && origin == BlockOrigin::kPut) Touch({header.id});
  return present;
}

Status BlockStore::Collides(const BlockEntry& present, const BlockHeader& header) {
  if (present.header.key == header.key && present.header.lane == header.lane) {
    counters_.Add(EngineCounters::kAlreadyExists);
    return AlreadyExists(BlockName(header) + ": reserve: here already");
  }
  // Two keys with one SHA-256 prefix: the second is never stored, so it misses.
  counters_.Add(EngineCounters::kNoSpace);
  return ResourceExhausted(BlockName(header) + ": reserve: another key has this id");
}

BlockStore::Attempt BlockStore::TryReserve(BlockHeader& header, BlockOrigin origin,
                                           TenantAccount* tenant, DramArena::Fit fit) {
  const bool transient = origin == BlockOrigin::kTransient;
  const std::uint64_t charge = ChargeOf(header);
  BlockEntry* entry = table_.Acquire(header.id);
  if (entry == nullptr) {
    return {.refusal = Refusal::kNoBlockEntry,
            .status = ResourceExhausted("block table is full (" +
                                        std::to_string(table_.max_blocks()) + " blocks)")};
  }
  const ByteAccount::Shortage shortage = bytes_.Take(*tenant, charge, transient);
  if (shortage != ByteAccount::Shortage::kNone) {
    table_.Release(entry);
    switch (shortage) {
      case ByteAccount::Shortage::kQuota:
        return {.refusal = Refusal::kQuota,
                .status = ResourceExhausted("quota of tenant " + tenant->name + " is used up")};
      case ByteAccount::Shortage::kTransient:
        return {.refusal = Refusal::kFinal,
                .status = ResourceExhausted("budget for fetched blocks is used up")};
      default:
        return {.refusal = Refusal::kCapacity, .status = ResourceExhausted("pool is full")};
    }
  }
  auto slot = arena_.Allocate(tenant->name, header.length_bytes, fit);
  if (!slot.ok()) {
    bytes_.GiveBack(*tenant, charge, transient);
    table_.Release(entry);
    const bool full = slot.status().code() == StatusCode::kResourceExhausted;
    return {.refusal = full ? Refusal::kArena : Refusal::kFinal, .status = slot.status()};
  }
  entry->header = std::move(header);
  entry->data = slot->data;
  entry->memfd_id = slot->memfd_id;
  entry->offset = slot->offset;
  entry->tenant = tenant;
  entry->word.store(transient ? BlockEntry::kTransient : 0, std::memory_order_relaxed);
  return {.refusal = Refusal::kNone, .status = Status::Ok(), .entry = entry};
}

Result<PinnedBlock> BlockStore::Commit(BlockEntry* entry, BlockOrigin origin,
                                       std::uint64_t computed) {
  BlockHeader& header = entry->header;
  if (header.checksum != 0 && header.checksum != computed) {
    counters_.Add(EngineCounters::kChecksumMismatches);
    Free(entry);
    return DataLoss("block: commit: bytes do not match their checksum");
  }
  header.checksum = computed;
  const std::int64_t now_us = NowUs();
  const bool travelled = origin != BlockOrigin::kPut && header.last_touch_us > 0;
  header.last_touch_us = travelled ? std::min(header.last_touch_us, now_us) : now_us;
  entry->last_touch_us = header.last_touch_us;
  entry->has_other_holder = header.has_other_holder;
  AddPin(entry);  // the caller's, before anybody else can see it
  const Status published = origin == BlockOrigin::kTransient ? PublishTransient(entry)
                                                             : Publish(entry, origin, travelled);
  if (!published.ok()) {
    bytes_.DropPinned(ChargeOf(header));
    entry->word.fetch_sub(1, std::memory_order_acq_rel);
    Free(entry);
    return published;
  }
  counters_.Add(EngineCounters::kPuts);
  return MakePin(entry, header.last_touch_us, header.has_other_holder, false);
}

Status BlockStore::Publish(BlockEntry* entry, BlockOrigin origin, bool travelled) {
  const std::int64_t now_us = NowUs();
  MutexLock order(order_->mu);
  Shard& shard = table_.ShardOf(entry->header.id);
  MutexLock lock(shard.mu);
  if (closed_.load()) return Unavailable("pool " + pool_name_ + ": commit: the pool is gone");
  if (const BlockEntry* present = shard.Find(entry->header.id); present != nullptr) {
    return Collides(*present, entry->header);
  }
  shard.Insert(entry);
  order_->Insert(entry, travelled, now_us);
  if (BlockObserver* observer = observer_.load(); observer != nullptr) {
    observer->OnCommitted(entry->header, origin);
  }
  return Status::Ok();
}

Status BlockStore::PublishTransient(BlockEntry* entry) {
  Shard& shard = table_.ShardOf(entry->header.id);
  MutexLock lock(shard.mu);
  if (closed_.load()) return Unavailable("pool " + pool_name_ + ": commit: the pool is gone");
  if (const BlockEntry* present = shard.Find(entry->header.id); present != nullptr) {
    return Collides(*present, entry->header);
  }
  shard.Insert(entry);
  return Status::Ok();
}

void BlockStore::Free(BlockEntry* entry) {
  const std::uint64_t charge = ChargeOf(entry->header);
  const bool transient =
      (entry->word.load(std::memory_order_acquire) & BlockEntry::kTransient) != 0;
#ifdef KVF_DCHECKS
  // A reader that comes too late sees this, not a plausible block.
  std::memset(entry->data, 0xDB, entry->header.length_bytes);
#endif
  arena_.Free({.data = entry->data,
               .memfd_id = entry->memfd_id,
               .offset = entry->offset,
               .bytes = RoundUpToSlot(entry->header.length_bytes)});
  TenantAccount& tenant = *entry->tenant;
  table_.Release(entry);
  bytes_.GiveBack(tenant, charge, transient);
}

void BlockStore::AddPin(BlockEntry* entry) {
  const std::uint32_t before = entry->word.fetch_add(1, std::memory_order_acq_rel);
  KVF_CHECK((before & BlockEntry::kPinMask) != BlockEntry::kPinMask, "pins of a block overflow");
  if ((before & BlockEntry::kPinMask) == 0) bytes_.AddPinned(ChargeOf(entry->header));
}

PinnedBlock BlockStore::MakePin(BlockEntry* entry, std::int64_t touch_us, bool other_holder,
                                bool spill) {
  return PinnedBlock(std::make_shared<const PinnedBlock::Handle>(
      shared_from_this(), entry,
      PinnedBlock::Handle::Moment{.last_touch_us = touch_us, .has_other_holder = other_holder},
      spill));
}

std::optional<PinnedBlock> BlockStore::Pin(const KeyId& id, const std::string_view* key,
                                           Lane lane) {
  BlockEntry* entry = nullptr;
  bool other_holder = false;
  std::int64_t touch_us = 0;
  {
    Shard& shard = table_.ShardOf(id);
    MutexLock lock(shard.mu);
    entry = shard.Find(id);
    if (entry == nullptr) return std::nullopt;
    if (key != nullptr && (entry->header.key != *key || entry->header.lane != lane)) {
      return std::nullopt;
    }
    AddPin(entry);
    other_holder = entry->has_other_holder;
    touch_us = entry->last_touch_us;
  }
  return MakePin(entry, touch_us, other_holder, false);
}

void BlockStore::Unpin(BlockEntry* entry, bool spill) {
  if (spill) EndSpill(entry);
  if ((entry->word.load(std::memory_order_acquire) & BlockEntry::kTransient) != 0) {
    UnpinTransient(entry);
    return;
  }
  const std::uint64_t charge = ChargeOf(entry->header);  // afterwards it may be another's
  const std::uint32_t before = entry->word.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & BlockEntry::kPinMask) == 1) {
    bytes_.DropPinned(charge);
    if ((before & BlockEntry::kDraining) != 0) Free(entry);
  }
  if (spill && spill_ended_) spill_ended_();
}

// Between dropping the last pin and taking the block out nobody may find it, hence the lock.
void BlockStore::UnpinTransient(BlockEntry* entry) {
  {
    Shard& shard = table_.ShardOf(entry->header.id);
    MutexLock lock(shard.mu);
    const std::uint64_t charge = ChargeOf(entry->header);
    const std::uint32_t before = entry->word.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & BlockEntry::kPinMask) > 1) return;
    bytes_.DropPinned(charge);
    if ((before & BlockEntry::kDraining) == 0) {
      if ((before & BlockEntry::kTransient) == 0) return;  // kept in the meantime
      shard.Remove(entry);
    }
  }
  Free(entry);
}

void BlockStore::EndSpill(BlockEntry* entry) {
  {
    Shard& shard = table_.ShardOf(entry->header.id);
    MutexLock lock(shard.mu);
    std::vector<BlockEntry*> freed;  // stays empty: our own pin still holds
    if ((entry->word.load() & BlockEntry::kDraining) == 0) Forget(entry, shard, freed);
  }
  bytes_.EndSpill(ChargeOf(entry->header));
}

bool BlockStore::Contains(const KeyId& id) const {
  Shard& shard = table_.ShardOf(id);
  MutexLock lock(shard.mu);
  return shard.Find(id) != nullptr;
}

bool BlockStore::ContainsKept(const KeyId& id) const {
  Shard& shard = table_.ShardOf(id);
  MutexLock lock(shard.mu);
  const BlockEntry* entry = shard.Find(id);
  return entry != nullptr && (entry->word.load() & BlockEntry::kTransient) == 0;
}

void BlockStore::Touch(const std::vector<KeyId>& ids) {
  const std::int64_t now_us = NowUs();
  for (std::size_t end = ids.size(); end > 0;) {
    const std::size_t begin = end - std::min(end, kTouchesAtOnce);
    MutexLock order(order_->mu);
    for (std::size_t i = end; i-- > begin;) {
      Shard& shard = table_.ShardOf(ids[i]);
      MutexLock lock(shard.mu);
      BlockEntry* entry = shard.Find(ids[i]);
      if (entry == nullptr) continue;
      entry->last_touch_us = std::max(entry->last_touch_us, now_us);
      if (!IsOrdered(*entry)) continue;
      entry->tenant->policy->Touch(PolicyHandle{entry->order}, now_us);
    }
    end = begin;
  }
}

}  // namespace kvfabric
