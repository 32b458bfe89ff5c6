#include "agent/policy/eviction_policy.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/policy/policy_blocks.h"

namespace kvfabric {
namespace {

TEST(MakeEvictionPolicy, RunsReuseAwareAsLeafLruAndSaysSo) {
  for (const char* name : {"ReuseAware", "LRU"}) {
    auto policy = MakeEvictionPolicy(name, {.expected_blocks = 100});
    ASSERT_TRUE(policy.ok()) << policy.status().ToString();
    EXPECT_EQ((*policy)->name(), "LRU");
    EXPECT_EQ((*policy)->block_count(), 0U);
  }
}

TEST(MakeEvictionPolicy, AnswersUnimplementedForPoliciesOfLaterParts) {
  for (const char* name : {"LFU", "S3FIFO"}) {
    const auto policy = MakeEvictionPolicy(name);
    EXPECT_EQ(policy.status().code(), StatusCode::kUnimplemented);
    EXPECT_NE(policy.status().message().find(name), std::string::npos);
  }
}

TEST(MakeEvictionPolicy, NamesTheChoicesForAnUnknownName) {
  const auto policy = MakeEvictionPolicy("lru");
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(policy.status().message().find("ReuseAware, LRU, LFU or S3FIFO"), std::string::npos);
}

TEST(MakeEvictionPolicy, MakesRoomForTheExpectedBlocksAtOnce) {
  auto policy = MakeEvictionPolicy("LRU", {.expected_blocks = 10'000});
  ASSERT_TRUE(policy.ok());
  const std::size_t before = (*policy)->memory_bytes();
  InsertChain(**policy, 1, 10'000, 5);
  // A chain has one leaf, so nothing but its heap may have grown.
  EXPECT_LE((*policy)->memory_bytes(), before + 1024);
}

TEST(MakeEvictionPolicy, StaysWithin128BytesABlock) {
  auto policy = MakeEvictionPolicy("LRU", {.expected_blocks = 200'000});
  ASSERT_TRUE(policy.ok());
  for (std::uint64_t n = 1; n <= 200'000; ++n) (*policy)->Insert(TestBlock(n, 0, 0), 1);
  // Every block a leaf is the dearest case.
  EXPECT_LE((*policy)->memory_bytes() / 200'000, 100U);
}

}  // namespace
}  // namespace kvfabric
