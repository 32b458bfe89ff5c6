// Rows that others measured on whole traces with another simulator (capacity in percent of the
// distinct full blocks, hit tokens in percent of all). Configured only where the traces are.

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "agent/policy/leaf_lru.h"
#include "bench/cache_simulation.h"
#include "trace/trace_directory.h"

namespace kvfabric {
namespace {

struct Row {
  double capacity, lru, optimum;
};

void ExpectRows(const char* file, std::size_t distinct_blocks, const std::vector<Row>& rows) {
  const auto directory = FindTraceDirectory(std::getenv("KVF_TRACES"));
  ASSERT_TRUE(directory.ok()) << directory.status().ToString();
  const auto trace = LoadTrace(directory->path / file);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  const BlockStream stream(*trace);
  EXPECT_EQ(stream.distinct_blocks(), distinct_blocks);
  for (const Row& row : rows) {
    const std::size_t capacity = stream.CapacityBlocks(row.capacity);
    LeafLru policy;
    EXPECT_NEAR(SimulatePolicy(stream, policy, capacity).percent(), row.lru, 0.0501) << capacity;
    EXPECT_NEAR(SimulateOptimum(stream, capacity).percent(), row.optimum, 0.0501) << capacity;
  }
}

TEST(PublishedRows, AreMetOnTheConversationTrace) {
  ExpectRows("mooncake_conversation_trace.jsonl", 170'899,
             {{1, 5.3, 24.5}, {5, 19.8, 37.3}, {10, 28.2, 37.3}, {25, 36.0, 37.3}});
}

TEST(PublishedRows, AreMetOnTheSyntheticTrace) {
  ExpectRows("mooncake_synthetic_trace.jsonl", 40'148,
             {{5, 15.3, 38.7}, {10, 25.4, 50.3}, {25, 44.3, 62.9}});
}

}  // namespace
}  // namespace kvfabric
