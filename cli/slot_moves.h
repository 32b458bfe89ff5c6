#pragma once

// How many slots changes of the shard map moved, against the least that any planner could have
// moved between the same loads. Pure.

#include <cstdint>
#include <vector>

#include "placement/shard_map.h"

namespace kvfabric::cli {

struct SlotMoves {
  std::uint64_t moved = 0;  // byte columns: (slot, owner) pairs of `after` that `before` lacks
  std::uint64_t bound = 0;  // sum over nodes of what they have more: each such column had to move
};

// Nodes are the same by name. Only the first `replicas` columns of a slot, which keep bytes, count.
SlotMoves CountSlotMoves(const ShardMap& before, const ShardMap& after);

// The same over all maps that a pool had, oldest first. Maps with the same set of owning nodes are
// one change (a ramp, a drain in steps): its bound is between its first and last load, so that
// moving a slot to and fro counts as what it is.
SlotMoves CountSlotMoves(const std::vector<ShardMap>& history);

}  // namespace kvfabric::cli
