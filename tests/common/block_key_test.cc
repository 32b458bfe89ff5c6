#include "common/block_key.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfabric {
namespace {

TEST(RunStart, FollowsTheDocumentedStarts) {
  const std::vector<std::uint32_t> starts = {0, 1, 2, 4, 8, 16, 32, 48, 64, 80};
  std::size_t current = 0;
  for (std::uint32_t depth = 0; depth < 96; ++depth) {
    if (current + 1 < starts.size() && depth == starts[current + 1]) ++current;
    EXPECT_EQ(RunStart(depth), starts[current]) << depth;
  }
}

TEST(Fingerprint, IsSortedLinesAndRefusesAmbiguity) {
  EXPECT_EQ(*EncodeFingerprint({{"model", "m"}, {"dtype", "bf16"}}), "dtype=bf16\nmodel=m\n");
  EXPECT_FALSE(EncodeFingerprint({{"a=b", "c"}}).ok());
  EXPECT_FALSE(EncodeFingerprint({{"", "c"}}).ok());
  EXPECT_FALSE(EncodeFingerprint({{"a", "x\ny=z"}}).ok());
}

TEST(BlockKey, IsOneTo512Bytes) {
  EXPECT_FALSE(ValidateKey("").ok());
  EXPECT_TRUE(ValidateKey(std::string(512, 'k')).ok());
  EXPECT_FALSE(ValidateKey(std::string(513, 'k')).ok());
}

}  // namespace
}  // namespace kvfabric
