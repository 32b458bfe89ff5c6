#pragma once

// Planner: from the last shard map and the members one wants to the next shard map.
//
// Pure: no clock, no I/O, no randomness; the same input gives the same bytes on every host and
// compiler (integer arithmetic, ordered containers, XXH3 and a fixed mixer only). Any thread.
//
// Which members hold slots: Active, Recovering and Suspect keep what they have (Suspect gets
// nothing more), Joining is counted with its ramp share, Draining and Lost own nothing (Draining
// does when nobody else can). Slots of a member that left, is Lost or Draining move at once;
// moves that only balance are limited. A plan never takes away a slot's last surviving owner, so
// after a loss it may leave work to the next one: plan again until nothing changes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "placement/shard_map.h"

namespace kvfabric {

struct PlanMember {
  // Identity, addresses, zone and state; `weight` is what the agent reports now (usable bytes,
  // at most 2^53): the planner quantises it.
  Member member;
  std::uint32_t quota_permille = 1000;  // Joining only: rebalance_rules.h JoinSharePermille()
};

struct PlanInput {
  std::string pool_uid;
  const ShardMap* previous = nullptr;  // borrowed; null = no map yet
  std::vector<PlanMember> members;     // in any order
  std::uint32_t slot_count = kRedisSlots;
  std::uint32_t replicas = 1;
  // Bytes each slot holds per copy: moves are costed and the lightest slots move first. Empty =
  // not known, all alike; else slot_count long.
  std::span<const std::uint64_t> slot_bytes;
  // Most slots that may move for balance; unset = MisplacedBudget(slot_count).
  std::optional<std::uint32_t> balance_slots_max;
  // A reported weight within this share of the one in `previous` is taken as unchanged.
  std::uint32_t weight_dead_band_percent = 10;
};

// One table entry that changes hands. Columns below `replicas` move bytes, others knowledge only.
struct SlotMove {
  SlotIndex slot = 0;
  std::uint32_t column = 0;
  MemberIndex from = kNoOwner;  // in the new map; kNoOwner = nobody, or a member that left
  MemberIndex to = kNoOwner;
  std::uint64_t bytes = 0;  // 0 for directory columns

  bool operator==(const SlotMove&) const = default;
};

struct PlanResult {
  // term and epoch are those of `previous` (0 without one): the caller counts epochs.
  ShardMap map;
  bool changed = false;  // members or table differ from `previous`
  // New byte owners first by slot, new directory owners among them; reordering the byte owners of
  // a slot moves nothing and is not listed.
  std::vector<SlotMove> moves;
  std::uint32_t byte_moves = 0;  // those of `moves` in byte columns
  std::uint64_t moved_bytes = 0;
  // Slots whose byte owners are fewer than `replicas` or share a zone though there are several.
  std::vector<SlotIndex> unsatisfied;
  // Entries, directory ones included, that the next plan should still move: held back by the
  // balance limit or because their slot changed in this plan.
  std::uint32_t misplaced_remaining = 0;
};

class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::string_view name() const = 0;
  // InvalidArgument for an input that no map can answer (slot count, replicas, more than 1024
  // members, one identity twice, `previous` of another slot count). Too few members, no room in
  // other zones and the like are results, not errors.
  virtual Result<PlanResult> Plan(const PlanInput& input) const = 0;
};

}  // namespace kvfabric
