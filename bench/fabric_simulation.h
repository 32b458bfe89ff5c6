#pragma once

// Several caches as one fabric under a request stream, without bytes: which node a request goes to,
// what it finds on all nodes together, what is kept a second time, and the spill rule. It shows
// what the policy code and the rules can reach; time-outs, queues and late knowledge it does not
// know. Pure; any thread.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bench/block_stream.h"

namespace kvfabric {

enum class Route : std::uint8_t {
  kHash,        // by the block at depth 1: a conversation stays at one node
  kRoundRobin,  // each request at the next node
  kOne,         // all at the first: the others are only memory
};
std::string_view RouteName(Route route);

struct FabricShape {
  std::size_t nodes = 3;            // at most 32
  std::size_t capacity_blocks = 0;  // of all nodes together
  Route route = Route::kHash;
  bool spill = true;
};

struct FabricCount {
  HitCount hits;
  std::uint64_t local_hit_tokens = 0;  // part of hits.hit_tokens
  std::uint64_t spilled_blocks = 0;
  std::uint64_t inserted_blocks = 0;
};

// All nodes run the policy that leaf-first LRU is.
FabricCount SimulateFabric(const BlockStream& stream, const FabricShape& shape);

}  // namespace kvfabric
