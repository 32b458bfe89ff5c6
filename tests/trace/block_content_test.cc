#include "trace/block_content.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvfabric {
namespace {

std::vector<std::byte> Content(std::uint64_t id, std::size_t bytes) {
  std::vector<std::byte> block(bytes);
  FillBlockContent(id, block);
  return block;
}

TEST(BlockKeyOf, IsTheIdBigEndian) {
  EXPECT_EQ(BlockKeyOf(0), std::string(8, '\0'));
  EXPECT_EQ(ToHex(AsBytes(BlockKeyOf(0x0102030405060708ULL))), "0102030405060708");
  EXPECT_LT(BlockKeyOf(255), BlockKeyOf(256));  // keys sort as ids
}

TEST(BlockContent, IsTheSameEachTimeAndOnEachMachine) {
  const auto block = Content(42, 1000);
  EXPECT_EQ(block, Content(42, 1000));
  // Fixed by the format: a fill of one build is checked by another.
  EXPECT_EQ(ToHex(ByteSpan(block).first(16)), "956eeb2f2632d7bdaaea35afdfab0e5c");
  EXPECT_EQ(FindWrongByte(42, block), std::nullopt);
}

TEST(BlockContent, OfAShorterBlockIsAPrefix) {
  const auto whole = Content(7, 4096);
  for (const std::size_t bytes : {1U, 7U, 8U, 63U, 64U, 65U, 4095U}) {
    const auto part = Content(7, bytes);
    EXPECT_EQ(std::memcmp(part.data(), whole.data(), bytes), 0) << bytes;
    EXPECT_EQ(FindWrongByte(7, part), std::nullopt) << bytes;
  }
}

TEST(BlockContent, OfNoBytesIsRight) { EXPECT_EQ(FindWrongByte(7, {}), std::nullopt); }

TEST(BlockContent, DiffersInEveryLineBetweenIds) {
  constexpr std::size_t kBytes = 64 * 64;
  std::vector<std::vector<std::byte>> blocks;
  for (const std::uint64_t id : {0ULL, 1ULL, 2ULL, 3ULL, 1ULL << 32U, ~0ULL}) {
    blocks.push_back(Content(id, kBytes));
  }
  for (std::size_t a = 0; a < blocks.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      for (std::size_t line = 0; line < kBytes; line += 64) {
        EXPECT_NE(std::memcmp(blocks[a].data() + line, blocks[b].data() + line, 64), 0)
            << a << " " << b << " " << line;
      }
    }
  }
}

TEST(BlockContent, IsNotItselfWhenShifted) {
  const auto block = Content(5, 4096);
  for (std::size_t shift = 1; shift <= 256; ++shift) {
    EXPECT_NE(FindWrongByte(5, ByteSpan(block).subspan(shift)), std::nullopt) << shift;
  }
}

TEST(FindWrongByte, NamesTheFirstWrongByteWhereverItIs) {
  for (const std::size_t bytes : {1U, 63U, 64U, 200U, 4096U}) {
    auto block = Content(9, bytes);
    for (std::size_t at = 0; at < bytes; ++at) {
      block[at] ^= std::byte{0x10};
      EXPECT_EQ(FindWrongByte(9, block), at) << bytes;
      block[at] ^= std::byte{0x10};
    }
  }
  auto block = Content(9, 200);
  block[190] ^= std::byte{1};
  block[70] ^= std::byte{1};
  EXPECT_EQ(FindWrongByte(9, block), 70U);
}

}  // namespace
}  // namespace kvfabric
