#pragma once

// CacheEngine: one pool's blocks on this node. Reserve -> fill -> Commit makes a block visible;
// Pin keeps one readable; watermarks evict leaves in the background.
//
// Owned by the agent, one per pool (UID). Any thread may call any method; none waits for disk,
// peers or eviction, except that Reserve may evict clean leaves inline within a bounded number of
// steps. Promises: a block is visible only after Commit; first writer wins; a pinned block's
// bytes never change or move; used bytes never exceed the capacity.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/block/block_header.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/status.h"

namespace kvfabric {

class DramArena;  // agent/tier: the node's memfds, shared by its pools

// Where a block's bytes are, as a client that mapped the memfd sees them.
struct MemoryLocation {
  std::uint64_t memfd_id = 0;  // never reused in one agent run
  std::uint64_t offset = 0;
};

// Why a block enters; decides accounting, flags and whether it may be kept.
enum class BlockOrigin : std::uint8_t {
  kPut,        // a client of this agent
  kReplica,    // pushed by a writer or by re-replication
  kSpill,      // handed over by a peer that had to evict it
  kDrain,      // moved here by a draining peer
  kTransient,  // fetched for a reader; own budget, freed at the last release unless kept
};

// A committed block that stays readable while this object lives. Move only. Must not outlive the
// engine's agent, but may outlive the pool: bytes stay until the last pin goes.
class PinnedBlock {
 public:
  class Handle;  // engine-private
  PinnedBlock() = default;
  explicit PinnedBlock(std::shared_ptr<const Handle> handle) : handle_(std::move(handle)) {}

  explicit operator bool() const { return handle_ != nullptr; }
  const BlockHeader& header() const;  // last_touch and flags as of pinning; copied at first use
  // The same without that copy.
  const KeyId& id() const;
  const NamespaceRef& ns() const;
  std::uint64_t checksum() const;
  ByteSpan bytes() const;
  MemoryLocation location() const;

 private:
  std::shared_ptr<const Handle> handle_;
};

// Memory for one block, invisible until Commit. Destroying it gives the memory back.
class Reservation {
 public:
  class Slot;  // engine-private
  Reservation();
  explicit Reservation(std::unique_ptr<Slot> slot);
  ~Reservation();
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;

  explicit operator bool() const { return slot_ != nullptr; }
  MutableByteSpan bytes();
  const BlockHeader& header() const;
  // Makes the block visible. `computed` is the checksum of what lies in bytes(), computed by the
  // caller as it filled them; DATA_LOSS when the header carries a checksum (non-zero) that
  // differs, ALREADY_EXISTS when another writer came first; the memory is given back then.
  Result<PinnedBlock> Commit(std::uint64_t computed) &&;

 private:
  std::unique_ptr<Slot> slot_;
};

// What the cluster side wants to hear. Called under an engine shard's lock, in order per block:
// only append to a bounded queue of your own. A transient block is not told of when it is
// committed, only when Keep turns it into an ordinary one: OnCommitted with origin kTransient.
// Every OnCommitted is followed by one OnRemoved, before the next OnCommitted of that id.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void OnCommitted(const BlockHeader& header, BlockOrigin origin) = 0;
  virtual void OnRemoved(const BlockHeader& header) = 0;
};

// Asked by the evictor, on its thread, for a leaf that is about to go. True = the taker keeps the
// pin, hands the block to a peer within its deadline, and drops the pin; the engine removes the
// block from its table when that pin goes. False = evict now.
class SpillTarget {
 public:
  virtual ~SpillTarget() = default;
  virtual bool Take(PinnedBlock block) = 0;
};

struct TenantQuota {
  std::string tenant;
  std::uint64_t dram_bytes = 0;  // 0 = none
};

struct EngineStats {
  std::uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0, pinned_bytes = 0;
  std::uint64_t transient_bytes = 0, pending_spill_bytes = 0;
  std::uint64_t puts = 0, already_exists = 0, no_space = 0, evicted = 0, spilled = 0, deleted = 0;
  std::uint64_t checksum_mismatches = 0, evicted_bytes = 0;
  std::uint64_t index_bytes = 0;  // table and policies; keys and metadata not included
};

class CacheEngine {
 public:
  struct Options {
    std::string pool_uid;
    std::string pool_name;
    std::uint64_t capacity_bytes = 0;
    std::uint32_t high_watermark_percent = 90;
    std::uint32_t low_watermark_percent = 80;
    std::string eviction_policy = "LRU";
    std::vector<TenantQuota> quotas;
    // Entries of the block table; when they are used up a leaf goes, as when bytes are. 0 = one
    // for each 16 KiB of capacity, at least 65,536. Fixed for the engine's life.
    std::size_t max_blocks = 0;
  };
  // What the engine borrows; all of it outlives the engine.
  struct Environment {
    DramArena* arena = nullptr;
    const Clock* clock = nullptr;
    Executor* background = nullptr;  // eviction runs here
    MetricsRegistry* metrics = nullptr;
  };

  static Result<std::unique_ptr<CacheEngine>> Create(Options options, Environment environment);
  // The most that table, policies and usual keys (up to 64 bytes) of a pool, or of all pools
  // together, take besides the blocks: for the memory check before serving.
  static std::uint64_t MostIndexBytes(std::uint64_t capacity_bytes, std::size_t max_blocks = 0);
  virtual ~CacheEngine() = default;

  // Both may be set once, before the first block, and are borrowed.
  virtual void SetObserver(BlockObserver* observer) = 0;
  virtual void SetSpillTarget(SpillTarget* target) = 0;
  // Capacity, watermarks and quotas may change; other fields must not.
  virtual Status Reconfigure(const Options& options) = 0;

  // ALREADY_EXISTS when visible; RESOURCE_EXHAUSTED (NO_SPACE) when nothing could be evicted, a
  // quota or a budget is used up; INVALID_ARGUMENT for a header that breaks limits.
  virtual Result<Reservation> Reserve(BlockHeader header, BlockOrigin origin) = 0;

  // nullopt = miss. Compares the full key and lane with what the block carries; touches nothing.
  virtual std::optional<PinnedBlock> Pin(const KeyId& id, std::string_view key, Lane lane) = 0;
  // For a peer that names ids only; it compares the key itself.
  virtual std::optional<PinnedBlock> PinById(const KeyId& id) = 0;
  virtual bool Contains(const KeyId& id) const = 0;
  // As Contains, but not for a transient copy, of which the observer was never told.
  virtual bool ContainsKept(const KeyId& id) const = 0;

  // Stamps the blocks of one request tail first, so that ties break deepest-first. `ids` in
  // chain order.
  virtual void Touch(const std::vector<KeyId>& ids) = 0;
  virtual bool Delete(const KeyId& id) = 0;
  virtual void SetHasOtherHolder(const KeyId& id, bool value) = 0;
  // Turns a transient block into an ordinary one (with has_other_holder). False = gone or no room.
  virtual bool Keep(const KeyId& id) = 0;

  // Age (now less last touch) of the coldest leaf that could be evicted, and of the coldest that
  // could be spilled (no other holder, not spilled in); nullopt when there is none.
  virtual std::optional<Clock::Duration> ColdestAge() const = 0;
  virtual std::optional<Clock::Duration> ColdestSpillableAge() const = 0;
  // Headers of all committed blocks of these slots (all slots when empty), for announcements,
  // re-announcement and drain; not of transient ones. A copy: may be large; never called on a
  // request path.
  virtual std::vector<BlockHeader> Snapshot(const std::vector<std::uint32_t>& slots) const = 0;
  virtual EngineStats Stats() const = 0;

  // Drops every block that is not pinned, e.g. when the pool is gone.
  virtual void Clear() = 0;
};

}  // namespace kvfabric
