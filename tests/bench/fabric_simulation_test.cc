#include "bench/fabric_simulation.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "agent/policy/leaf_lru.h"
#include "bench/cache_simulation.h"
#include "trace/trace_directory.h"

namespace kvfabric {
namespace {

BlockStream Excerpt() {
  const auto trace = LoadTrace(std::filesystem::path("examples") / kTraceExcerpt);
  KVF_CHECK(trace.ok(), "the excerpt is part of the sources");
  return BlockStream(*trace);
}

TEST(SimulateFabric, OfOneNodeIsOneCache) {
  const BlockStream stream = Excerpt();
  for (const double percent : {5.0, 20.0, 60.0}) {
    const std::size_t capacity = stream.CapacityBlocks(percent);
    LeafLru policy;
    EXPECT_EQ(SimulateFabric(stream, {.nodes = 1, .capacity_blocks = capacity}).hits.hit_tokens,
              SimulatePolicy(stream, policy, capacity).hit_tokens);
  }
}

TEST(SimulateFabric, SpillMakesTheNodesOnePoolWhenAllRequestsGoToOne) {
  const BlockStream stream = Excerpt();
  const std::size_t capacity = stream.CapacityBlocks(30) / 3 * 3;
  LeafLru policy;
  const double pool = SimulatePolicy(stream, policy, capacity).percent();
  FabricShape shape{.nodes = 3, .capacity_blocks = capacity, .route = Route::kOne};
  const FabricCount with = SimulateFabric(stream, shape);
  shape.spill = false;
  const FabricCount without = SimulateFabric(stream, shape);
  EXPECT_LT(without.hits.percent(), pool * 0.9);
  EXPECT_EQ(without.spilled_blocks, 0U);
  EXPECT_GE(with.hits.percent(), pool * 0.95);
  EXPECT_GT(with.spilled_blocks, 0U);
}

TEST(SimulateFabric, FindsBlocksOnAllNodesTogether) {
  const BlockStream stream = Excerpt();
  // Without a limit, wherever requests go, all reuse is found; round-robin finds most of it remote.
  const FabricShape shape{
      .nodes = 4, .capacity_blocks = 8 * stream.distinct_blocks(), .route = Route::kRoundRobin};
  const FabricCount count = SimulateFabric(stream, shape);
  EXPECT_EQ(count.hits.hit_tokens, SimulateOptimum(stream, stream.distinct_blocks()).hit_tokens);
  EXPECT_LT(count.local_hit_tokens, count.hits.hit_tokens / 2);
}

}  // namespace
}  // namespace kvfabric
