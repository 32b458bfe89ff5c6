#pragma once

// What every planner needs around its own algorithm: input checks, the member list of the next
// map, failure domains, and the list of moves between two maps. Pure functions; any thread.

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "placement/planner.h"

namespace kvfabric {

// A fixed 64-bit mixer (the finaliser of SplitMix64): the only source of "chance" in plans.
constexpr std::uint64_t MixBits(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

// Rounds to 7 significant bits (steps of at most 1.6 %), so that reports that differ by noise
// give the same plan.
std::uint64_t QuantiseWeight(std::uint64_t usable_bytes);

// How a planner may use a member.
struct Seating {
  std::uint64_t weight = 0;  // share of the slots, ramp included; 0 = owns nothing
  std::uint32_t domain = 0;  // dense index of its failure domain
  bool held = false;         // Suspect: keeps what it has, gets nothing
};

// An input made ready: members of the next map in their final order, how each may be used, and
// where each member of the previous map is now.
struct PlanFrame {
  ShardMap map;  // all but the table
  std::vector<Seating> seating;
  std::uint32_t domain_count = 0;    // domains with a member that may own slots
  bool zones_spread = false;         // at least two zones: owners of a slot should differ in it
  std::uint64_t seed = 0;            // from the pool UID
  std::vector<MemberIndex> renamed;  // previous index -> index now, kNoOwner = left
};

// Members of the previous map keep their order, new ones follow by name, so that a join changes
// no index. With fewer than two zones each member is a failure domain of its own.
Result<PlanFrame> PreparePlan(const PlanInput& input);

// Fills `changed`, `moves`, `unsatisfied` and their sums from `result.map` against `input`.
void DescribePlan(const PlanInput& input, const PlanFrame& frame, PlanResult& result);

}  // namespace kvfabric
