#pragma once

// Directory: which nodes hold a block, for the slots this node owns in one pool. Entries are
// hints: a wrong one costs a refused lease, never wrong bytes.
//
// Owned by PoolNode; any thread may call any method, except that OpenHolder, RetireHolder and
// Sweep are called by one thread at a time (DirectoryFeed's lock). Sharded by KeyId; each shard is
// an open-addressing table under its own lock, held for one entry's work only.
//
// A holder is one incarnation of a node's knowledge: a new boot epoch or a snapshot opens a new
// one, and retiring the old drops all its entries at once (they are skipped by readers and swept
// later). Add and Remove must not be called for a retired holder.
//
// Bounds: 32 bytes an entry at a load of at most 3/4, at most Options::max_bytes in all; at the
// bound an arbitrary old entry makes room (counted). At most kHoldersPerEntry nodes are known per
// block, further ones are not recorded (counted).

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "agent/cluster/node_names.h"
#include "common/block_key.h"
#include "common/mutex.h"

namespace kvfabric {

using HolderId = std::uint16_t;
inline constexpr HolderId kNoHolder = 0;

class Directory {
 public:
  static constexpr std::size_t kHoldersPerEntry = 6;
  static constexpr std::size_t kMaxHolders = 8192;

  struct Options {
    std::size_t max_bytes = std::size_t{256} << 20U;
  };
  // Nodes that hold one block.
  struct Holders {
    std::array<NodeIndex, kHoldersPerEntry> nodes{};
    std::uint8_t count = 0;

    std::span<const NodeIndex> span() const& { return {nodes.data(), count}; }
    std::span<const NodeIndex> span() const&& = delete;  // would outlive what it shows
    bool Has(NodeIndex node) const;
    void Add(NodeIndex node);  // ignored when it is there or no room is left
    void Remove(NodeIndex node);
  };
  struct Listing {
    KeyId id;
    std::uint32_t slot = 0;
    Holders holders;
  };
  struct Counts {
    std::size_t entries = 0;
    std::size_t bytes = 0;
    std::uint64_t shed = 0;
    std::uint64_t holder_overflows = 0;
  };

  explicit Directory(Options options);
  ~Directory();
  Directory(const Directory&) = delete;  // holders would be shared by two owners
  Directory& operator=(const Directory&) = delete;

  // kNoHolder when kMaxHolders incarnations are alive or unswept.
  HolderId OpenHolder(NodeIndex node);
  void RetireHolder(HolderId holder);

  // True when a node other than the holder's has the block too.
  bool Add(const KeyId& id, std::uint32_t slot, HolderId holder);
  void Remove(const KeyId& id, NodeIndex node);
  Holders Find(const KeyId& id) const;

  // Frees entries of retired holders and, where `owned` is not empty, of slots whose bit is not
  // set. One shard at a time.
  void Sweep(const std::vector<bool>& owned);
  // Entries that name `node`, at most `max_entries`: what must be copied again after its loss.
  std::vector<Listing> EntriesOf(NodeIndex node, std::size_t max_entries) const;

  Counts counts() const;

 private:
  struct Entry {
    KeyId id;
    std::uint32_t slot = 0;
    std::array<HolderId, kHoldersPerEntry> holders{};  // packed to the front; [0] = none: free
    bool used() const { return holders[0] != kNoHolder; }
  };
  static_assert(sizeof(Entry) == 32);
  struct alignas(64) Shard {
    mutable Mutex mu;
    std::vector<Entry> table GUARDED_BY(mu);  // a power of two, or empty
    std::size_t used GUARDED_BY(mu) = 0;
    std::size_t hand GUARDED_BY(mu) = 0;  // where the next entry is shed
    std::uint64_t shed GUARDED_BY(mu) = 0;
    std::uint64_t holder_overflows GUARDED_BY(mu) = 0;
  };
  static constexpr std::size_t kShards = 64;
  static constexpr std::uint32_t kLive = 1U << 31U;

  Shard& ShardOf(const KeyId& id) const { return shards_[id.hash() >> 58U]; }
  // kNoNode when the holder is retired.
  NodeIndex NodeOf(HolderId holder) const;
  void DropDeadHolders(Entry& entry) const;
  Holders HoldersOf(const Entry& entry) const;
  std::size_t Probe(const Shard& shard, const KeyId& id) const REQUIRES(shard.mu);
  void MakeRoom(Shard& shard) REQUIRES(shard.mu);
  void Grow(Shard& shard, std::size_t capacity) REQUIRES(shard.mu);
  void Erase(Shard& shard, std::size_t at) REQUIRES(shard.mu);

  const std::size_t max_entries_per_shard_;
  const std::unique_ptr<Shard[]> shards_;
  // holder -> node | kLive; 0 = never opened or swept. Stores are release, loads acquire: a reader
  // that sees the holder in an entry sees whose it is.
  const std::unique_ptr<std::atomic<std::uint32_t>[]> holders_;
  std::vector<HolderId> free_holders_;     // touched under the caller's lock
  std::vector<HolderId> retired_holders_;  // likewise
};

}  // namespace kvfabric
