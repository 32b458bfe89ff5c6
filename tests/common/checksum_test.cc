#include "common/checksum.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

std::vector<std::byte> RandomBytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// The definition, spelled out with the library alone.
std::uint64_t Reference(const std::vector<std::byte>& block) {
  std::vector<std::byte> digests;
  for (std::size_t at = 0; at == 0 || at < block.size(); at += kPieceBytes) {
    const std::uint64_t h =
        XXH3_64bits(block.data() + at, std::min(kPieceBytes, block.size() - at));
    for (int i = 0; i < 8; ++i) digests.push_back(static_cast<std::byte>(h >> (8 * i)));
  }
  return XXH3_64bits(digests.data(), digests.size());
}

TEST(BlockChecksum, IsHashOfPieceHashes) {
  const std::uint64_t seed = TestSeed();
  for (const std::size_t n : {std::size_t{1}, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1,
                              3 * kPieceBytes, 3 * kPieceBytes + 17}) {
    const auto block = RandomBytes(n, seed + n);
    EXPECT_EQ(BlockChecksum(block), Reference(block)) << n;
    std::vector<std::byte> copy(n);
    EXPECT_EQ(CopyAndChecksum(copy, block), Reference(block)) << n;
    EXPECT_EQ(copy, block);
  }
}

TEST(BlockChecksum, SeesEveryFlippedBit) {
  auto block = RandomBytes(kPieceBytes + 100, 7);
  const std::uint64_t before = BlockChecksum(block);
  for (const std::size_t at : {std::size_t{0}, kPieceBytes - 1, kPieceBytes, block.size() - 1}) {
    block[at] ^= std::byte{1};
    EXPECT_NE(BlockChecksum(block), before) << at;
    block[at] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace kvfabric
