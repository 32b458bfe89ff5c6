#include "placement/slot.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/bytes.h"

namespace kvfabric {
namespace {

TEST(Slot, Crc16IsXmodem) {
  EXPECT_EQ(Crc16(AsBytes("123456789")), 0x31C3);
  EXPECT_EQ(Crc16(AsBytes("")), 0);
}

TEST(Slot, MatchesRedisCluster) {
  EXPECT_EQ(SlotOfSingle("foo", kRedisSlots), 12182U);
  EXPECT_EQ(SlotOfSingle("bar", kRedisSlots), 5061U);
  EXPECT_EQ(SlotOfSingle("hello", kRedisSlots), 866U);
  EXPECT_EQ(SlotOfSingle("123456789", kRedisSlots), 0x31C3U & 0x3FFFU);
}

TEST(Slot, TakesTheFirstHashTagOnly) {
  const auto slot = [](const char* key) { return SlotOfSingle(key, kRedisSlots); };
  EXPECT_EQ(slot("{user1000}.following"), slot("user1000"));
  EXPECT_EQ(slot("foo{bar}{zap}"), slot("bar"));
  EXPECT_EQ(slot("foo{{bar}}zap"), SlotOf(AsBytes("{bar"), kRedisSlots));
  // An empty or unclosed tag is no tag.
  EXPECT_EQ(slot("foo{}{bar}"), SlotOf(AsBytes("foo{}{bar}"), kRedisSlots));
  EXPECT_EQ(slot("foo{bar"), SlotOf(AsBytes("foo{bar"), kRedisSlots));
  EXPECT_EQ(slot("}foo{bar}"), slot("bar"));
}

TEST(Slot, OfARunTagCountsBraces) {
  EXPECT_NE(SlotOf(AsBytes("x{bar}"), kRedisSlots), SlotOf(AsBytes("bar"), kRedisSlots));
}

TEST(Slot, OfMoreSlotsKeepsTheRedisSlotBelow) {
  for (int i = 0; i < 10'000; ++i) {
    const std::string key = "key-" + std::to_string(i);
    const SlotIndex redis_slot = SlotOf(AsBytes(key), kRedisSlots);
    for (std::uint32_t count = kRedisSlots; count <= kMaxSlotCount; count *= 2) {
      const SlotIndex slot = SlotOf(AsBytes(key), count);
      ASSERT_LT(slot, count);
      ASSERT_EQ(slot & (kRedisSlots - 1), redis_slot);
    }
  }
}

TEST(Slot, SplitsEachRedisSlotEvenly) {
  // 131072 slots add three bits; keys of one prefix must use all eight values alike.
  std::vector<int> counts(8, 0);
  constexpr int kKeys = 80'000;
  for (int i = 0; i < kKeys; ++i) {
    ++counts[SlotOf(AsBytes("k" + std::to_string(i)), kMaxSlotCount) / kRedisSlots];
  }
  for (const int count : counts) EXPECT_NEAR(count, kKeys / 8, 400);  // four sigma
}

TEST(Slot, OfMoreSlotsIsPinned) {
  // Golden: every host must agree, so a change here is a change of format.
  EXPECT_EQ(SlotOf(AsBytes("foo"), 32768), 28566U);
  EXPECT_EQ(SlotOf(AsBytes("foo"), 131072), 94102U);
  EXPECT_EQ(SlotOf(AsBytes("bar"), 131072), 103365U);
}

TEST(Slot, CountsAreFourPowersOfTwo) {
  EXPECT_TRUE(IsValidSlotCount(16384));
  EXPECT_TRUE(IsValidSlotCount(131072));
  EXPECT_FALSE(IsValidSlotCount(8192));
  EXPECT_FALSE(IsValidSlotCount(262144));
  EXPECT_FALSE(IsValidSlotCount(49152));
  EXPECT_FALSE(IsValidSlotCount(0));
}

}  // namespace
}  // namespace kvfabric
