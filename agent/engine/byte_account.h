#pragma once

// ByteAccount: how many bytes a pool uses here, of what kind, and how many it may. Reserving is
// one compare-and-swap each for tenant, pool and transient budget, so that the sums never exceed
// their limits, not even for a moment. Owned by BlockStore; any thread; all sums in 64 bits.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/policy/eviction_policy.h"

namespace kvfabric {

// One tenant's share of a pool on this node.
struct TenantAccount {
  TenantAccount(std::string name_in, std::uint64_t quota)
      : name(std::move(name_in)), quota_bytes(quota) {}

  const std::string name;
  std::atomic<std::uint64_t> used_bytes{0};
  std::atomic<std::uint64_t> quota_bytes;  // 0 = none
  // Its blocks that may be evicted; guarded by EvictionOrder::mu.
  std::unique_ptr<EvictionPolicy> policy;
};

class ByteAccount {
 public:
  static constexpr std::uint32_t kTransientPercent = 10;
  static constexpr std::uint32_t kSpillPercent = 5;

  enum class Shortage : std::uint8_t { kNone, kQuota, kCapacity, kTransient };

  void SetLimits(std::uint64_t capacity_bytes, std::uint32_t high_percent,
                 std::uint32_t low_percent);

  Shortage Take(TenantAccount& tenant, std::uint64_t bytes, bool transient);
  void GiveBack(TenantAccount& tenant, std::uint64_t bytes, bool transient);
  // A transient block became an ordinary one.
  void EndTransient(std::uint64_t bytes);

  // False when the queue of blocks on their way to a peer is full.
  bool TakeSpill(std::uint64_t bytes);
  void EndSpill(std::uint64_t bytes) { pending_spill_.fetch_sub(bytes); }
  bool SpillFull(std::uint64_t bytes) const;

  void AddPinned(std::uint64_t bytes) { Add(pinned_, static_cast<std::int64_t>(bytes)); }
  void DropPinned(std::uint64_t bytes) { Add(pinned_, -static_cast<std::int64_t>(bytes)); }

  std::uint64_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t transient() const { return transient_.load(std::memory_order_relaxed); }
  std::uint64_t pending_spill() const { return pending_spill_.load(std::memory_order_relaxed); }
  std::uint64_t pinned() const;
  // What the watermarks compare: transient blocks go by themselves, spilled ones count as gone.
  std::uint64_t resident() const;
  bool above_high() const { return resident() > high_.load(std::memory_order_relaxed); }
  bool above_low() const { return resident() > low_.load(std::memory_order_relaxed); }

 private:
  static void Add(std::atomic<std::int64_t>& sum, std::int64_t bytes) {
    sum.fetch_add(bytes, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> capacity_{0};
  std::atomic<std::uint64_t> high_{0};
  std::atomic<std::uint64_t> low_{0};
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint64_t> transient_{0};
  std::atomic<std::uint64_t> pending_spill_{0};
  // Signed: the thread that drops the last pin may count before the one that took the first.
  std::atomic<std::int64_t> pinned_{0};
};

}  // namespace kvfabric
