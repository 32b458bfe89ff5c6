#include "placement/consistent_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "placement/shard_map_codec.h"
#include "tests/placement/test_pool.h"

namespace kvfabric {
namespace {

TEST(ConsistentHash, KeepsEveryMemberBelowItsBound) {
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    TestPool pool(replicas);
    pool.AddMembers(60, 3);
    pool[3].member.weight = 256 * kGiB;
    const auto plan = ConsistentHash().Plan(pool.input);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ASSERT_EQ(plan->map.Validate().ToString(), "OK");
    EXPECT_TRUE(plan->unsatisfied.empty());
    const auto loads = Loads(plan->map, 0, replicas);
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), 0U), kRedisSlots * replicas);
    const double unit = kRedisSlots * replicas / 63.0;  // 59 members of one weight, one of four
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const double share = i == 3 ? 4 * unit : unit;
      EXPECT_LE(loads[i], 1.25 * (share + 2)) << i;
    }
  }
}

TEST(ConsistentHash, MovesLittleWhenAMemberJoins) {
  TestPool pool(1);
  pool.AddMembers(50);
  const auto before = ConsistentHash().Plan(pool.input);
  ASSERT_TRUE(before.ok());
  pool.AddMembers(1);
  pool.input.previous = &before->map;
  const auto after = ConsistentHash().Plan(pool.input);
  ASSERT_TRUE(after.ok());
  EXPECT_LT(after->byte_moves, kRedisSlots / 51 * 5 / 2);
  EXPECT_GT(after->byte_moves, 0U);
}

TEST(ConsistentHash, DoesNotDependOnTheLastMap) {
  TestPool pool(2);
  pool.AddMembers(20, 3);
  pool.Plan();  // a map of the other planner
  const auto fresh = ConsistentHash().Plan(pool.input);
  pool.input.previous = &pool.map;
  const auto again = ConsistentHash().Plan(pool.input);
  ASSERT_TRUE(fresh.ok() && again.ok());
  EXPECT_EQ(fresh->map.table, again->map.table);
}

TEST(ConsistentHash, LeavesColumnsEmptyWhenMembersAreFew) {
  TestPool pool(3);
  pool.AddMembers(2);
  const auto plan = ConsistentHash().Plan(pool.input);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->map.Validate().ToString(), "OK");
  EXPECT_EQ(plan->map.Owners(0)[2], kNoOwner);
  EXPECT_EQ(plan->unsatisfied.size(), kRedisSlots);
}

TEST(ConsistentHash, PlanIsPinned) {
  TestPool pool(2);
  pool.AddMembers(20, 3);
  const auto plan = ConsistentHash().Plan(pool.input);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(TableChecksumText(plan->map.table), "13c5f7a10ddcb75b");
}

TEST(ConsistentHash, RefusesUselessOptions) {
  TestPool pool(1);
  EXPECT_FALSE(ConsistentHash({.load_bound_percent = 100}).Plan(pool.input).ok());
  EXPECT_FALSE(ConsistentHash({.points_per_member = 0}).Plan(pool.input).ok());
}

}  // namespace
}  // namespace kvfabric
