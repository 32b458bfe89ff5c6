#include "cli/slot_moves.h"

#include <gtest/gtest.h>

namespace kvfabric::cli {
namespace {

ShardMap MapOf(std::vector<std::string> nodes, std::uint32_t replicas) {
  ShardMap map;
  map.replicas = replicas;
  map.owners_per_slot = OwnersPerSlot(replicas);
  for (std::string& node : nodes) {
    Member member;
    member.node_name = std::move(node);
    map.members.push_back(member);
  }
  map.table.assign(std::size_t{map.slot_count} * map.owners_per_slot, kNoOwner);
  return map;
}

void SetAll(ShardMap& map, MemberIndex first, MemberIndex second) {
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    map.table[slot * 2] = first;
    map.table[slot * 2 + 1] = second;
  }
}

TEST(SlotMoves, CountsNothingWhenOnlyNumbersOfMembersChange) {
  ShardMap before = MapOf({"a", "b"}, 1);
  ShardMap after = MapOf({"b", "a"}, 1);
  SetAll(before, 0, 1);
  SetAll(after, 1, 0);
  EXPECT_EQ(CountSlotMoves(before, after).moved, 0U);
  EXPECT_EQ(CountSlotMoves(before, after).bound, 0U);
}

TEST(SlotMoves, CountsByteColumnsOnly) {
  ShardMap before = MapOf({"a", "b", "c"}, 1);
  ShardMap after = before;
  SetAll(before, 0, 1);
  SetAll(after, 0, 2);
  EXPECT_EQ(CountSlotMoves(before, after).moved, 0U);
  before.replicas = after.replicas = 2;
  EXPECT_EQ(CountSlotMoves(before, after).moved, before.slot_count);
  EXPECT_EQ(CountSlotMoves(before, after).bound, before.slot_count);
}

TEST(SlotMoves, BoundIsWhatNodesGained) {
  // Two nodes swap a slot each: two moves, but neither load changed, so none was needed.
  ShardMap before = MapOf({"a", "b"}, 1);
  SetAll(before, 0, 1);
  before.table[2] = 1;
  before.table[3] = 0;
  ShardMap after = before;
  std::swap(after.table[0], after.table[2]);
  std::swap(after.table[1], after.table[3]);
  EXPECT_EQ(CountSlotMoves(before, after).moved, 2U);
  EXPECT_EQ(CountSlotMoves(before, after).bound, 0U);
}

TEST(SlotMoves, AddsUpAHistoryByChangeOfOwners) {
  ShardMap start = MapOf({"a", "b", "c"}, 1);
  SetAll(start, 0, 1);
  ShardMap half = start;  // c joins in two steps
  for (SlotIndex slot = 0; slot < 100; ++slot) half.table[slot * 2] = 2;
  ShardMap joined = half;
  for (SlotIndex slot = 100; slot < 300; ++slot) joined.table[slot * 2] = 2;
  EXPECT_EQ(CountSlotMoves({start, half, joined}).moved, 300U);
  EXPECT_EQ(CountSlotMoves({start, half, joined}).bound, 300U);
  // To and fro within one change is movement that was not needed.
  EXPECT_EQ(CountSlotMoves({start, half, joined, half, joined}).moved, 700U);
  EXPECT_EQ(CountSlotMoves({start, half, joined, half, joined}).bound, 300U);
  // c leaves again: another change, needed again.
  EXPECT_EQ(CountSlotMoves({start, joined, start}).bound, 600U);
  EXPECT_EQ(CountSlotMoves(std::vector<ShardMap>{}).moved, 0U);
}

}  // namespace
}  // namespace kvfabric::cli
