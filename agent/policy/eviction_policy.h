#pragma once

// EvictionPolicy chooses which block of one tier leaves next. It sees ids, sizes and chain links
// only, never bytes, and never frees anything: its owner asks for a victim, frees it and says so.
//
// Owner: the cache engine, one policy for each set of blocks that is evicted together (a tenant
// in a tier). Externally synchronised: the owner calls every method, const ones too, under one
// lock of its own. No method blocks, logs or calls back, except for the `can_evict` predicate,
// which runs under that lock and must not call the policy.
//
// Invariants: (1) only leaves are victims, a leaf being a block without a child in this tier;
// children are counted by the parent's KeyId, whether or not the parent is here, so a parent that
// comes back finds its count; (2) a block that another holder has goes before any that none has;
// (3) a block inserted fresh is never older than one touched before it.
//
// Units: stamps are microseconds of a monotonic clock of the owner, any origin. Where a stamp
// comes from another agent the owner turns that agent's idle time into a stamp of its own clock
// (now - idle). Errors: none; a broken contract ends the process.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/block_key.h"
#include "common/status.h"

namespace kvfabric {

// Names a block within one policy from Insert to Erase; afterwards the number is used again.
enum class PolicyHandle : std::uint32_t {};
inline constexpr PolicyHandle kNoPolicyHandle{0xFFFF'FFFF};

// What a policy learns about a block when it enters the tier.
struct PolicyBlock {
  KeyId id;
  KeyId parent;  // none() at depth 0 and for kind Single
  std::uint32_t depth = 0;
  std::uint64_t size_bytes = 0;
  // Set for a block that travelled (spill, replica, fetch): when it was last touched where it came
  // from. Unset for a fresh one, which counts as touched now.
  std::optional<std::int64_t> travelled_last_touch_us;
  bool has_other_holder = false;
  bool spilled_in = false;  // stays with the copy for life; never spilled a second time
};

struct Victim {
  PolicyHandle handle = kNoPolicyHandle;
  KeyId id;
  std::uint64_t size_bytes = 0;
  std::int64_t last_touch_us = 0;
  std::uint32_t depth = 0;
  bool has_other_holder = false;
  bool spilled_in = false;

  // May be handed to a peer instead of dropped: once in its life, and only a sole copy.
  bool spillable() const { return !has_other_holder && !spilled_in; }
};

class EvictionPolicy {
 public:
  // Whether the owner can free this leaf now: not pinned, no I/O under way.
  using CanEvict = std::function<bool(const Victim&)>;

  // One NextVictim asks `can_evict` at most so often. Refused leaves step aside, so that a
  // following call goes on with others; they are asked for again kRefusedForUs later, or when no
  // other is left.
  static constexpr std::size_t kMaxRefusals = 64;
  static constexpr std::int64_t kRefusedForUs = 1'000'000;

  enum class Outcome : std::uint8_t {
    kVictim,   // `victim` is set
    kRefused,  // kMaxRefusals leaves were refused; calling again makes progress
    kNone,     // no leaf is left that was not refused in this round
  };
  struct Choice {
    Outcome outcome = Outcome::kNone;
    Victim victim;
  };

  virtual ~EvictionPolicy() = default;

  virtual std::string_view name() const = 0;

  // `block.id` must not be here yet.
  virtual PolicyHandle Insert(const PolicyBlock& block, std::int64_t now_us) = 0;
  // A block left the tier, as victim or otherwise; it may still have children here.
  virtual void Erase(PolicyHandle handle) = 0;

  // A read or a repeated put of one block.
  virtual void Touch(PolicyHandle handle, std::int64_t now_us) = 0;
  // The same for consecutive blocks of one chain, head first as look-ups list them. The tail counts
  // as touched first, so that among equals the deepest is the oldest.
  virtual void TouchChain(std::span<const PolicyHandle> chain, std::int64_t now_us) = 0;

  virtual void SetHasOtherHolder(PolicyHandle handle, bool has_other_holder) = 0;

  // The leaf to go next. It stays until Erase: a second call may name it again. Calls of one
  // eviction round pass the same `now_us`, so that a leaf is asked for once a round and it ends.
  virtual Choice NextVictim(std::int64_t now_us, const CanEvict& can_evict) = 0;

  // Policy index (for LRU the last touch) of the coldest leaf: what the keepalive tells peers.
  // Unset when there is none. Leaves refused lately do not count.
  virtual std::optional<std::int64_t> ColdestIndex() const = 0;
  // The same among leaves that may be spilled.
  virtual std::optional<std::int64_t> ColdestSpillableIndex() const = 0;

  // The block as NextVictim would describe it.
  virtual Victim Describe(PolicyHandle handle) const = 0;
  virtual bool IsLeaf(PolicyHandle handle) const = 0;
  virtual std::size_t block_count() const = 0;
  virtual std::uint64_t used_bytes() const = 0;
  // RAM this policy holds, for the agent's index budget.
  virtual std::size_t memory_bytes() const = 0;
};

struct EvictionPolicyOptions {
  // Room made at once, so that growing never happens under the owner's lock; 0 = grow as needed.
  std::size_t expected_blocks = 0;
};

// `name` as in the pool's evictionPolicy: ReuseAware, LRU, LFU or S3FIFO. ReuseAware runs as
// leaf-first LRU so far, which its name() tells; LFU and S3FIFO answer UNIMPLEMENTED.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                           EvictionPolicyOptions options = {});

}  // namespace kvfabric
