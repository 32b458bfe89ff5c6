#pragma once

// How many slots a change of the shard map moved, against the least that any planner could have
// moved between the same two loads. Pure.

#include <cstdint>

#include "placement/shard_map.h"

namespace kvfabric::cli {

struct SlotMoves {
  std::uint64_t moved = 0;  // byte columns: (slot, owner) pairs of `after` that `before` lacks
  std::uint64_t bound = 0;  // sum over nodes of what they have more: each such column had to move
};

// Nodes are the same by name. Only the first `replicas` columns of a slot, which keep bytes, count.
SlotMoves CountSlotMoves(const ShardMap& before, const ShardMap& after);

}  // namespace kvfabric::cli
