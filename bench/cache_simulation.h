#pragma once

// One cache of a given number of blocks under a request stream, without bytes: the real policy
// code, and the optimum beside it. Pure; any thread.

#include <cstddef>

#include "agent/policy/eviction_policy.h"
#include "bench/block_stream.h"

namespace kvfabric {

// `policy` is empty at the start. Each request is one look-up of its chain, a touch of what was
// found, a put of the rest, and eviction down to the capacity.
HitCount SimulatePolicy(const BlockStream& stream, EvictionPolicy& policy,
                        std::size_t capacity_blocks);

// The most that any policy can reach: MIN with bypass, ties deepest-first. As a parent is used
// again no later than its child, what it keeps is closed under prefixes, so the optimum for single
// blocks is the optimum for contiguous prefixes too.
HitCount SimulateOptimum(const BlockStream& stream, std::size_t capacity_blocks);

}  // namespace kvfabric
