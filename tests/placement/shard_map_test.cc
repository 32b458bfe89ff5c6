#include "placement/shard_map.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "placement/shard_map_codec.h"
#include "tests/placement/test_pool.h"

namespace kvfabric {
namespace {

// Small enough to read: 3 members, written out by rule, with one slot that has one owner.
ShardMap SampleMap() {
  ShardMap map;
  map.pool_uid = "5b1f0c9e-pool";
  map.term = 7;
  map.epoch = 42;
  for (int i = 0; i < 3; ++i) map.members.push_back(TestMember(i, "zone-a").member);
  map.members[1].state = MemberState::kSuspect;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    map.table.push_back(static_cast<MemberIndex>(slot % 3));
    map.table.push_back(static_cast<MemberIndex>((slot + 1 + slot % 2) % 3));
  }
  map.table[1] = kNoOwner;
  return map;
}

void ExpectFault(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
}

TEST(ShardMap, FindsOwnersAndMembers) {
  const ShardMap map = SampleMap();
  ASSERT_EQ(map.Validate().ToString(), "OK");
  EXPECT_EQ(map.Owners(4).size(), 2U);
  EXPECT_EQ(map.ByteOwners(4).size(), 1U);
  EXPECT_EQ(map.ByteOwners(4)[0], 1);
  EXPECT_TRUE(map.Owns(2, 4));
  EXPECT_FALSE(map.Owns(0, 4));
  EXPECT_EQ(map.FindMember("node-0002", "uid-node-0002"), MemberIndex{2});
  EXPECT_FALSE(map.FindMember("node-0002", "another").has_value());
}

TEST(ShardMap, NamesTheFirstFault) {
  ShardMap map = SampleMap();
  map.table[9] = 3;
  ExpectFault(map.Validate(), "slot 4 names member 3 of 3");
  map = SampleMap();
  map.table[9] = map.table[8];
  ExpectFault(map.Validate(), "slot 4 lists member 1 twice");
  map = SampleMap();
  map.table[8] = kNoOwner;
  ExpectFault(map.Validate(), "slot 4 has an owner after an empty column");
  map = SampleMap();
  map.table.pop_back();
  ExpectFault(map.Validate(), "table has 32767 entries (need 32768)");
  map = SampleMap();
  map.members[2] = map.members[0];
  ExpectFault(map.Validate(), "node-0000");
  map = SampleMap();
  map.slot_count = 1000;
  ExpectFault(map.Validate(), "slot count 1000");
  map = SampleMap();
  map.replicas = 3;
  ExpectFault(map.Validate(), "owners per slot 2 with 3 replicas (need 3)");
  map = SampleMap();
  map.members.resize(1025, map.members[0]);
  ExpectFault(map.Validate(), "1025 members");
}

TEST(MemberStateName, IsReadBack) {
  for (std::uint8_t i = 0; i < kMemberStateCount; ++i) {
    const auto state = static_cast<MemberState>(i);
    EXPECT_EQ(ParseMemberState(MemberStateName(state)), state);
  }
  EXPECT_FALSE(ParseMemberState("Gone").has_value());
}

TEST(TableText, IsBigEndianBase64) {
  // 0x0001 0xFFFF 0x0203 = bytes 00 01 FF FF 02 03.
  const std::vector<MemberIndex> table = {1, kNoOwner, 0x0203};
  EXPECT_EQ(EncodeTable(table), "AAH//wID");
}

TEST(TableText, IsReadBackAtEverySize) {
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    TestPool pool(replicas, replicas == 3 ? 131072 : 16384);
    pool.AddMembers(70, 3);
    pool.Plan();
    const std::string text = EncodeTable(pool.map.table);
    EXPECT_LE(text.size(), std::size_t{1} << 20U);  // maxLength of the resource's field
    const auto table = DecodeTable(text, pool.map.shape());
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    EXPECT_EQ(*table, pool.map.table);
    EXPECT_EQ(TableChecksum(*table), TableChecksum(pool.map.table));
  }
}

TEST(TableText, RefusesWhatIsNoTable) {
  const ShardMap map = SampleMap();
  const std::string text = EncodeTable(map.table);
  const auto fault = [&](const std::string& changed) {
    return DecodeTable(changed, map.shape()).status();
  };
  ExpectFault(fault(""), "0 characters");
  ExpectFault(fault(text.substr(4)), "characters of base64 (need");
  ExpectFault(fault(text + "AAAA"), "characters of base64 (need");
  std::string changed = text;
  changed[17] = '-';
  ExpectFault(fault(changed), "character 17 is not standard base64");
  changed = text;
  changed[40] = '=';
  ExpectFault(fault(changed), "character 40 is not standard base64");
  changed = text;
  // One byte too many in the same number of characters.
  ASSERT_TRUE(changed.ends_with("=="));
  changed.replace(changed.size() - 4, 4, "AAA=");
  ExpectFault(fault(changed), "65537 bytes (need 65536)");
  changed = text;
  changed.replace(changed.size() - 3, 1, "B");
  ExpectFault(fault(changed), "padding hides bits");
  std::vector<MemberIndex> table = map.table;
  table[100] = 3;
  ExpectFault(fault(EncodeTable(table)), "slot 50 names member 3 of 3");
  table = map.table;
  table[101] = table[100];
  ExpectFault(fault(EncodeTable(table)), "slot 50 lists member 2 twice");
  ExpectFault(
      DecodeTable(text, {.slot_count = 5, .owners_per_slot = 2, .member_count = 3}).status(),
      "no table has 5 slots");
}

TEST(TableText, ChecksumChangesWithEveryEntry) {
  ShardMap map = SampleMap();
  const std::uint64_t before = TableChecksum(map.table);
  map.table[20000] = static_cast<MemberIndex>(map.table[20000] ^ 1U);
  EXPECT_NE(TableChecksum(map.table), before);
  EXPECT_EQ(TableChecksumText(map.table).size(), 16U);
}

TEST(MapBytes, AreReadBack) {
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    TestPool pool(replicas);
    pool.AddMembers(7, 2);
    pool.Plan();
    pool.map.term = 3;
    pool.map.epoch = 1ULL << 40U;
    pool.map.members[4].state = MemberState::kRecovering;
    const auto bytes = SerializeShardMap(pool.map);
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    const auto read = ParseShardMap(*bytes);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(*read, pool.map);
  }
}

TEST(MapBytes, OfVersionOneStayReadable) {
  // Only the head of the file is stored; the table follows by the rule of SampleMap.
  std::ifstream file("tests/placement/golden/shard_map_v1.hex");
  std::string hex((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!hex.empty() && hex.back() == '\n') hex.pop_back();
  ASSERT_FALSE(hex.empty()) << "golden file not found: tests run in the source directory";
  const ShardMap map = SampleMap();
  const auto bytes = SerializeShardMap(map);
  ASSERT_TRUE(bytes.ok());
  const std::string written = ToHex(*bytes);
  const std::size_t table_digits = map.table.size() * 4;
  ASSERT_GT(written.size(), table_digits);
  EXPECT_EQ(
      written.substr(0, written.size() - table_digits - 16) + written.substr(written.size() - 16),
      hex);
}

TEST(MapBytes, AreRefusedWhenCutOff) {
  const auto bytes = SerializeShardMap(SampleMap());
  ASSERT_TRUE(bytes.ok());
  const ByteSpan whole(*bytes);
  for (std::size_t size = 0; size < whole.size(); size += size < 600 ? 1 : 997) {
    EXPECT_FALSE(ParseShardMap(whole.first(size)).ok()) << size;
  }
}

TEST(MapBytes, AreRefusedWhenChanged) {
  const auto bytes = SerializeShardMap(SampleMap());
  ASSERT_TRUE(bytes.ok());
  std::vector<std::byte> changed = *bytes;
  for (std::size_t at = 0; at < changed.size(); at += at < 600 ? 1 : 997) {
    changed[at] ^= std::byte{0x10};
    EXPECT_FALSE(ParseShardMap(changed).ok()) << at;
    changed[at] ^= std::byte{0x10};
  }
  EXPECT_TRUE(ParseShardMap(changed).ok());
}

// A sender may be wrong and still compute the checksum right.
TEST(MapBytes, AreRefusedWhenSealedOverAFault) {
  const auto bytes = SerializeShardMap(SampleMap());
  ASSERT_TRUE(bytes.ok());
  for (std::size_t at = 0; at < 400; ++at) {
    for (const unsigned value : {0x00U, 0x7FU, 0xFFU}) {
      std::vector<std::byte> changed = *bytes;
      changed[at] = static_cast<std::byte>(value);
      const ByteSpan body = ByteSpan(changed).first(changed.size() - 8);
      StoreLe<std::uint64_t>(changed.data() + body.size(), Hash64(body));
      const auto read = ParseShardMap(changed);
      if (!read.ok()) continue;
      EXPECT_EQ(read->Validate().ToString(), "OK") << at;
    }
  }
  std::vector<std::byte> future = *bytes;
  future[4] = std::byte{2};
  ExpectFault(ParseShardMap(future).status(), "format version 2 (this build reads 1)");
}

TEST(MapBytes, AreNotWrittenFromABrokenMap) {
  ShardMap map = SampleMap();
  map.members[0].address = std::string(513, 'a');
  ExpectFault(SerializeShardMap(map).status(), "address of 513 bytes (at most 512)");
  map = SampleMap();
  map.table[0] = 77;
  EXPECT_FALSE(SerializeShardMap(map).ok());
}

}  // namespace
}  // namespace kvfabric
