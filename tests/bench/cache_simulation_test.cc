#include "bench/cache_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "agent/policy/leaf_lru.h"
#include "tests/fakes/test_seed.h"
#include "trace/trace_directory.h"

namespace kvfabric {
namespace {

// A trace of whole blocks, one token each.
Trace TraceOf(const std::vector<std::vector<std::uint64_t>>& chains) {
  Trace trace;
  trace.block_tokens = 1;
  for (const auto& chain : chains) {
    TraceRequest request;
    request.timestamp_ms = static_cast<double>(trace.requests.size());
    request.input_length = static_cast<std::uint32_t>(chain.size());
    request.block_ids = chain;
    trace.requests.push_back(request);
  }
  return trace;
}

// The most hits any schedule reaches: every set of blocks a cache could hold after each request.
std::uint64_t BruteForceHits(const BlockStream& stream, std::size_t capacity) {
  std::map<std::uint32_t, std::uint64_t> best{{0, 0}};  // held set -> hits so far
  for (std::size_t r = 0; r < stream.request_count(); ++r) {
    const auto blocks = stream.request(r).blocks;
    std::uint32_t chain = 0;
    for (const std::uint32_t block : blocks) chain |= 1U << block;
    std::map<std::uint32_t, std::uint64_t> next;
    for (const auto& [held, hits] : best) {
      std::uint64_t found = 0;
      while (found < blocks.size() && (held >> blocks[found] & 1U) != 0) ++found;
      const std::uint32_t choice = held | chain;
      for (std::uint32_t kept = choice;; kept = (kept - 1) & choice) {
        if (static_cast<std::size_t>(__builtin_popcount(kept)) <= capacity) {
          next[kept] = std::max(next[kept], hits + found);
        }
        if (kept == 0) break;
      }
    }
    best = std::move(next);
  }
  std::uint64_t most = 0;
  for (const auto& [held, hits] : best) most = std::max(most, hits);
  return most;
}

TEST(SimulateOptimum, AgreesWithBruteForceOnSmallTrees) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 150; ++round) {
    std::vector<std::vector<std::uint64_t>> chains(5 + random() % 4);
    for (auto& chain : chains) {
      // A walk in a binary tree of depth 3: node n has the children 2n and 2n + 1.
      std::uint64_t at = 1;
      const std::size_t length = 1 + random() % 3;
      for (std::size_t depth = 0; depth < length; ++depth) {
        chain.push_back(at);
        at = 2 * at + random() % 2;
      }
    }
    const BlockStream stream(TraceOf(chains));
    for (std::size_t capacity = 0; capacity <= 4; ++capacity) {
      ASSERT_EQ(SimulateOptimum(stream, capacity).hit_tokens, BruteForceHits(stream, capacity))
          << "round " << round << " capacity " << capacity;
    }
  }
}

TEST(SimulateOptimum, IsNeverBelowThePolicy) {
  std::mt19937_64 random(TestSeed());
  std::vector<std::vector<std::uint64_t>> chains(500);
  for (auto& chain : chains) {
    std::uint64_t at = 1;
    const std::size_t length = 1 + random() % 7;
    for (std::size_t depth = 0; depth < length; ++depth) {
      chain.push_back(at);
      at = 4 * at + random() % 4;
    }
  }
  const BlockStream stream(TraceOf(chains));
  for (const std::size_t capacity : {1U, 5U, 20U, 100U, 100'000U}) {
    LeafLru policy;
    const HitCount lru = SimulatePolicy(stream, policy, capacity);
    EXPECT_LE(policy.block_count(), capacity);
    EXPECT_LE(lru.hit_tokens, SimulateOptimum(stream, capacity).hit_tokens) << capacity;
    EXPECT_EQ(lru.prompt_tokens, stream.prompt_tokens());
  }
}

TEST(SimulatePolicy, CountsContiguousPrefixesOnly) {
  // The third request finds block 1, not 2 (evicted as the coldest leaf), and so nothing behind it.
  const BlockStream stream(TraceOf({{1, 2}, {1, 3}, {1, 2, 4}}));
  LeafLru policy;
  EXPECT_EQ(SimulatePolicy(stream, policy, 2).hit_tokens, 2U);
  LeafLru roomy;
  EXPECT_EQ(SimulatePolicy(stream, roomy, 10).hit_tokens, 3U);
}

TEST(BlockStream, LeavesPartialTailsOutAndCountsTheirTokens) {
  Trace trace = TraceOf({{7, 8, 9}});
  trace.block_tokens = 2;
  trace.requests[0].input_length = 5;
  const BlockStream stream(trace);
  EXPECT_EQ(stream.distinct_blocks(), 2U);
  EXPECT_EQ(stream.request(0).blocks.size(), 2U);
  EXPECT_EQ(stream.prompt_tokens(), 5U);
  EXPECT_EQ(stream.CapacityBlocks(50), 1U);
}

// The expected tokens come from another implementation: an ordered list that each request's blocks
// enter tail first.
TEST(SimulatePolicy, AgreesWithAListLruOnTheExcerpt) {
  const auto trace = LoadTrace(std::filesystem::path("examples") / kTraceExcerpt);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  const BlockStream stream(*trace);
  const struct {
    std::size_t capacity_blocks;
    std::uint64_t hit_tokens;
  } rows[] = {{166, 119'296}, {331, 156'672}, {828, 513'024}, {1656, 854'528}, {3312, 1'702'912}};
  for (const auto& row : rows) {
    LeafLru policy;
    EXPECT_EQ(SimulatePolicy(stream, policy, row.capacity_blocks).hit_tokens, row.hit_tokens);
  }
}

}  // namespace
}  // namespace kvfabric
