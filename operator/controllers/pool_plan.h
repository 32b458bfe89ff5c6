#pragma once

// PlanPool: what placement's planners answer for one pool as it stands. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "operator/controllers/member_tracker.h"
#include "operator/specs/pool_spec.h"
#include "placement/planner.h"

namespace kvfabric {

struct PoolPlanInput {
  const Pool* pool = nullptr;
  const ShardMap* stored = nullptr;  // null = none yet
  const std::vector<TrackedMember>* members = nullptr;
  std::uint64_t bytes_per_slot = 0;  // 0 = not known
  // Moves that only balance: at most so many, unset = the planner's own limit.
  std::optional<std::uint32_t> balance_slots_max;
  // Weights as they are in the stored map, so that a planner that heeds no limit moves nothing for
  // a new one.
  bool hold_weights = false;
  // As it will be once everybody is well and has joined: no ramp, nobody suspect.
  bool at_rest = false;
};

Result<PlanResult> PlanPool(const PoolPlanInput& input);

const Member* FindNode(const ShardMap& map, const std::string& node);
// Beyond the dead band within which a reported capacity is taken as unchanged.
bool WeightMoved(std::uint64_t stored, std::uint64_t now);

}  // namespace kvfabric
