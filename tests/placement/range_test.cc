#include "placement/range.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "placement/shard_map_codec.h"
#include "tests/fakes/test_seed.h"
#include "tests/placement/test_pool.h"

namespace kvfabric {
namespace {

PlanResult PlanOf(const TestPool& pool) {
  auto plan = Range().Plan(pool.input);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->map.Validate().ToString(), "OK");
  return *std::move(plan);
}

// How many stretches of slots (round the end) a member keeps bytes of.
std::uint32_t Stretches(const ShardMap& map, MemberIndex member) {
  std::uint32_t starts = 0;
  const auto owns = [&](SlotIndex slot) {
    const auto owners = map.ByteOwners(slot);
    return std::find(owners.begin(), owners.end(), member) != owners.end();
  };
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    starts += owns(slot) && !owns((slot + map.slot_count - 1) % map.slot_count) ? 1U : 0U;
  }
  return starts;
}

TEST(Range, GivesEachMemberOneStretchAsLongAsItsWeightSays) {
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    TestPool pool(replicas);
    pool.AddMembers(60, 3);
    pool[3].member.weight = 256 * kGiB;
    const PlanResult plan = PlanOf(pool);
    EXPECT_TRUE(plan.unsatisfied.empty()) << replicas;
    const auto loads = Loads(plan.map, 0, replicas);
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), 0U), kRedisSlots * replicas);
    for (MemberIndex i = 0; i < loads.size(); ++i) {
      if (replicas < 3) {  // at three copies in three zones a zone's share is capped
        const double unit = kRedisSlots * replicas / 63.0;
        EXPECT_NEAR(loads[i], i == 3 ? 4 * unit : unit, 1) << i;
      }
      EXPECT_EQ(Stretches(plan.map, i), 1U) << i;
    }
  }
}

TEST(Range, SharesFirstPlacesAndDirectoryColumns) {
  TestPool copies(2);
  copies.AddMembers(20, 4);
  EXPECT_LE(Spread(Loads(PlanOf(copies).map, 0, 1)), 2U);
  TestPool single(1);
  single.AddMembers(20, 4);
  const PlanResult plan = PlanOf(single);
  EXPECT_LE(Spread(Loads(plan.map, 0, 1)), 1U);
  EXPECT_LE(Spread(Loads(plan.map, 1, 2)), 1U);
  for (SlotIndex slot = 0; slot < plan.map.slot_count; ++slot) {
    const auto owners = plan.map.Owners(slot);
    ASSERT_NE(plan.map.members[owners[0]].zone, plan.map.members[owners[1]].zone) << slot;
  }
}

// Random pools: every slot has as many owners as there can be, all different, in different
// domains where no domain is too heavy; nobody has more than its share; the same answer from any
// order of members and whatever the last map was.
TEST(Range, HoldsForRandomPools) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const std::uint32_t replicas = 1 + random() % 3;
    TestPool pool(replicas);
    const int zones = static_cast<int>(random() % 5);
    pool.AddMembers(1 + static_cast<int>(random() % 24), zones);
    for (PlanMember& wanted : pool.input.members) {
      wanted.member.weight = (16 + random() % 240) * kGiB;
      const auto dice = random() % 10;
      if (dice == 0) wanted.member.state = MemberState::kLost;
      if (dice == 1) wanted.member.state = MemberState::kDraining;
      if (dice == 2) {
        wanted.member.state = MemberState::kJoining;
        wanted.quota_permille = 500;
      }
    }
    const PlanResult plan = PlanOf(pool);
    const ShardMap& map = plan.map;
    std::size_t owning = 0;
    for (const std::uint32_t load : Loads(map, 0, map.owners_per_slot)) owning += load > 0 ? 1 : 0;
    const auto filled = std::min<std::size_t>(map.owners_per_slot, owning);
    for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
      for (std::size_t c = 0; c < map.owners_per_slot; ++c) {
        if (owning > 0) {
          ASSERT_EQ(map.Owners(slot)[c] != kNoOwner, c < filled) << slot;
        }
      }
    }
    std::shuffle(pool.input.members.begin(), pool.input.members.end(), random);
    EXPECT_EQ(PlanOf(pool).map.table, map.table);
    pool.input.previous = &map;
    const PlanResult again = PlanOf(pool);
    EXPECT_EQ(again.map.table, map.table);
    EXPECT_FALSE(again.changed);
    EXPECT_TRUE(again.moves.empty());
  }
}

TEST(Range, SeparatesDomainsWheneverNoneIsTooHeavy) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const std::uint32_t replicas = 2 + random() % 2;
    TestPool pool(replicas);
    pool.AddMembers(12 + static_cast<int>(random() % 12), 4);
    // Weights as they come: a zone that would get more than one round is capped to one.
    for (PlanMember& wanted : pool.input.members) {
      wanted.member.weight = (16 + random() % 1000) * kGiB;
    }
    EXPECT_TRUE(PlanOf(pool).unsatisfied.empty());
  }
}

TEST(Range, SpreadsAsFarAsTwoZonesAllow) {
  TestPool pool(3);
  pool.AddMembers(9, 2);
  const PlanResult plan = PlanOf(pool);
  EXPECT_EQ(plan.unsatisfied.size(), kRedisSlots);
  for (SlotIndex slot = 0; slot < plan.map.slot_count; ++slot) {
    std::set<std::string> zones;
    for (const MemberIndex owner : plan.map.ByteOwners(slot)) {
      zones.insert(plan.map.members[owner].zone);
    }
    ASSERT_EQ(zones.size(), 2U) << slot;
  }
}

TEST(Range, PutsTheDirectoryBesideAHeavyDomain) {
  TestPool pool(1);
  pool.AddMembers(6, 2);
  for (const std::size_t i : {0U, 2U, 4U}) pool[i].member.weight = 640 * kGiB;  // zone-0: 10/11
  const PlanResult plan = PlanOf(pool);
  for (SlotIndex slot = 0; slot < plan.map.slot_count; ++slot) {
    const auto owners = plan.map.Owners(slot);
    ASSERT_NE(owners[1], kNoOwner);
    ASSERT_NE(plan.map.members[owners[0]].zone, plan.map.members[owners[1]].zone) << slot;
  }
}

TEST(Range, LeavesColumnsEmptyWhenMembersAreFew) {
  TestPool pool(3);
  pool.AddMembers(2);
  const PlanResult plan = PlanOf(pool);
  EXPECT_EQ(plan.map.Owners(0)[2], kNoOwner);
  EXPECT_EQ(plan.unsatisfied.size(), kRedisSlots);
  TestPool alone(1);
  alone.AddMembers(1);
  EXPECT_EQ(PlanOf(alone).map.Owners(7)[1], kNoOwner);
}

TEST(Range, TellsTheMovesOfALoss) {
  TestPool pool(1);
  pool.AddMembers(4);
  const PlanResult before = PlanOf(pool);
  pool[1].member.state = MemberState::kLost;
  pool.input.previous = &before.map;
  const PlanResult after = PlanOf(pool);
  EXPECT_GE(after.byte_moves, kRedisSlots / 4);
  EXPECT_LT(after.byte_moves, kRedisSlots * 3 / 4);
  EXPECT_EQ(Loads(after.map, 0, 1)[1], 0U);
}

TEST(Range, PlanIsPinned) {
  TestPool pool(2);
  pool.AddMembers(20, 3);
  EXPECT_EQ(TableChecksumText(PlanOf(pool).map.table), "534aca5bf052244e");
}

}  // namespace
}  // namespace kvfabric
