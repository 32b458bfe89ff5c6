#include "agent/policy/leaf_lru.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/fakes/test_seed.h"
#include "tests/policy/policy_blocks.h"

namespace kvfabric {
namespace {

using Outcome = EvictionPolicy::Outcome;

TEST(LeafLru, EvictsAChainFromItsTail) {
  LeafLru policy;
  InsertChain(policy, 1, 4, 10);
  for (std::uint64_t number = 4; number >= 1; --number) {
    EXPECT_EQ(EvictOne(policy, 20), TestKeyId(number));
  }
  EXPECT_EQ(policy.NextVictim(20, AlwaysEvict).outcome, Outcome::kNone);
  EXPECT_EQ(policy.block_count(), 0U);
  EXPECT_EQ(policy.used_bytes(), 0U);
}

TEST(LeafLru, EvictsTheColderBranchAndKeepsTheSharedPrefix) {
  LeafLru policy;
  const auto trunk = InsertChain(policy, 1, 2, 10);
  const PolicyHandle left = policy.Insert(TestBlock(10, 2, 2), 20);
  policy.Insert(TestBlock(11, 2, 2), 30);
  policy.TouchChain(std::vector<PolicyHandle>{trunk[0], trunk[1], left}, 40);
  EXPECT_EQ(EvictOne(policy, 50), TestKeyId(11));
  EXPECT_EQ(EvictOne(policy, 50), TestKeyId(10));
  EXPECT_EQ(EvictOne(policy, 50), TestKeyId(2));
}

TEST(LeafLru, NeverPicksAFreshBlockWhileAnOlderLeafIsThere) {
  LeafLru policy;
  for (std::uint64_t n = 1; n <= 100; ++n) {
    policy.Insert(TestBlock(n, 0, 0), static_cast<std::int64_t>(1000 + n));
  }
  // The caller's reading of the clock is late, or zero: the block is fresh all the same.
  for (const std::int64_t late_us : {std::int64_t{0}, std::int64_t{500}}) {
    const auto fresh =
        policy.Insert(TestBlock(1000 + static_cast<std::uint64_t>(late_us), 0, 0), late_us);
    EXPECT_GE(policy.Describe(fresh).last_touch_us, 1100);
  }
  for (std::uint64_t n = 1; n <= 99; ++n) EXPECT_EQ(EvictOne(policy, 2000), TestKeyId(n));
}

TEST(LeafLru, KeepsTheAgeOfABlockThatTravelled) {
  LeafLru policy;
  policy.Insert(TestBlock(1, 0, 0), 100);
  PolicyBlock old = TestBlock(2, 0, 0);
  old.travelled_last_touch_us = 50;
  policy.Insert(old, 200);
  PolicyBlock from_the_future = TestBlock(3, 0, 0);
  from_the_future.travelled_last_touch_us = 1'000'000;
  const PolicyHandle future = policy.Insert(from_the_future, 300);
  EXPECT_EQ(policy.Describe(future).last_touch_us, 300);  // a peer cannot make it the hottest ever
  EXPECT_EQ(EvictOne(policy, 400), TestKeyId(2));
  EXPECT_EQ(EvictOne(policy, 400), TestKeyId(1));
  EXPECT_EQ(EvictOne(policy, 400), TestKeyId(3));
}

TEST(LeafLru, CountsChildrenOfAnAbsentParent) {
  LeafLru policy;
  // Child first, as a spilled tail arrives before its head.
  const PolicyHandle child = policy.Insert(TestBlock(2, 1, 1), 10);
  EXPECT_TRUE(policy.IsLeaf(child));
  const PolicyHandle parent = policy.Insert(TestBlock(1, 0, 0), 5);
  EXPECT_FALSE(policy.IsLeaf(parent));
  // The parent goes away (deleted), comes back, and still knows its child.
  policy.Erase(parent);
  EXPECT_TRUE(policy.IsLeaf(child));
  const PolicyHandle again = policy.Insert(TestBlock(1, 0, 0), 6);
  EXPECT_FALSE(policy.IsLeaf(again));
  EXPECT_EQ(EvictOne(policy, 20), TestKeyId(2));
  EXPECT_TRUE(policy.IsLeaf(again));
  EXPECT_EQ(EvictOne(policy, 20), TestKeyId(1));
}

TEST(LeafLru, ForgetsAnAbsentParentWithItsLastChild) {
  LeafLru policy;
  policy.Insert(TestBlock(1, 0, 0), 1);
  const std::size_t before = policy.memory_bytes();
  for (std::uint64_t n = 0; n < 100'000; ++n) {
    policy.Erase(policy.Insert(TestBlock(10 + 2 * n, 11 + 2 * n, 7), 2));
  }
  EXPECT_LE(policy.memory_bytes(), before + 1024);
}

TEST(LeafLru, LetsBlocksOfAnotherHolderGoFirst) {
  LeafLru policy;
  const PolicyHandle oldest = policy.Insert(TestBlock(1, 0, 0), 10);
  PolicyBlock copy = TestBlock(2, 0, 0);
  copy.has_other_holder = true;
  policy.Insert(copy, 20);
  const PolicyHandle newest = policy.Insert(TestBlock(3, 0, 0), 30);
  policy.SetHasOtherHolder(newest, true);
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(2));
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(3));
  EXPECT_FALSE(policy.Describe(oldest).has_other_holder);
  policy.SetHasOtherHolder(oldest, true);
  policy.SetHasOtherHolder(oldest, false);
  EXPECT_EQ(policy.ColdestSpillableIndex(), 10);
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(1));
}

TEST(LeafLru, SpillsOnlyWhatIsItsOwnAndWasNotSpilledIn) {
  LeafLru policy;
  EXPECT_EQ(policy.ColdestIndex(), std::nullopt);
  EXPECT_EQ(policy.ColdestSpillableIndex(), std::nullopt);
  PolicyBlock spilled = TestBlock(1, 0, 0);
  spilled.spilled_in = true;
  spilled.travelled_last_touch_us = 5;
  const PolicyHandle handle = policy.Insert(spilled, 100);
  PolicyBlock copy = TestBlock(2, 0, 0);
  copy.has_other_holder = true;
  copy.travelled_last_touch_us = 7;
  policy.Insert(copy, 100);
  EXPECT_EQ(policy.ColdestIndex(), 5);
  EXPECT_EQ(policy.ColdestSpillableIndex(), std::nullopt);
  EXPECT_FALSE(policy.Describe(handle).spillable());
  policy.Insert(TestBlock(3, 0, 0), 100);
  EXPECT_EQ(policy.ColdestSpillableIndex(), 100);
  policy.Touch(handle, 200);  // the mark stays for life
  EXPECT_TRUE(policy.Describe(handle).spilled_in);
  EXPECT_EQ(policy.ColdestIndex(), 7);
}

TEST(LeafLru, OrdersSpilledInBlocksByAgeAmongItsOwn) {
  LeafLru policy;
  PolicyBlock spilled = TestBlock(1, 0, 0);
  spilled.spilled_in = true;
  spilled.travelled_last_touch_us = 15;
  policy.Insert(TestBlock(2, 0, 0), 10);
  policy.Insert(TestBlock(3, 0, 0), 20);
  policy.Insert(spilled, 30);
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(2));
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(1));
  EXPECT_EQ(EvictOne(policy, 40), TestKeyId(3));
}

TEST(LeafLru, StepsOverPinnedLeavesWithBoundedWork) {
  LeafLru policy;
  constexpr std::uint64_t kPinned = 1000;
  for (std::uint64_t n = 1; n <= kPinned; ++n) policy.Insert(TestBlock(n, 0, 0), 1);
  policy.Insert(TestBlock(kPinned + 1, 0, 0), 2);
  std::size_t asked = 0;
  const auto only_last = [&](const Victim& victim) {
    ++asked;
    return victim.id == TestKeyId(kPinned + 1);
  };
  std::size_t calls = 0;
  EvictionPolicy::Choice choice;
  do {
    const std::size_t before = asked;
    choice = policy.NextVictim(10, only_last);
    EXPECT_LE(asked - before, EvictionPolicy::kMaxRefusals);
    ++calls;
  } while (choice.outcome == Outcome::kRefused && calls < 100);
  EXPECT_EQ(choice.outcome, Outcome::kVictim);
  EXPECT_EQ(choice.victim.id, TestKeyId(kPinned + 1));
  EXPECT_EQ(asked, kPinned + 1);
  // The refused are not asked again for a while.
  asked = 0;
  EXPECT_EQ(policy.NextVictim(20, only_last).outcome, Outcome::kVictim);
  EXPECT_EQ(asked, 1U);
}

TEST(LeafLru, EndsARoundInWhichEveryLeafIsPinned) {
  LeafLru policy;
  for (std::uint64_t n = 1; n <= 500; ++n) policy.Insert(TestBlock(n, 0, 0), 1);
  std::size_t asked = 0;
  const auto never = [&](const Victim&) {
    ++asked;
    return false;
  };
  std::size_t calls = 0;
  while (policy.NextVictim(10, never).outcome == Outcome::kRefused && calls < 100) ++calls;
  EXPECT_EQ(policy.NextVictim(10, never).outcome, Outcome::kNone);
  EXPECT_EQ(asked, 500U);
  EXPECT_EQ(policy.ColdestIndex(), std::nullopt);  // nothing a peer could count on
  // Pins end: the next round finds them at once, though it comes before their time.
  EXPECT_EQ(policy.NextVictim(11, AlwaysEvict).outcome, Outcome::kVictim);
}

TEST(LeafLru, AsksForARefusedLeafAgainInItsOldOrder) {
  LeafLru policy;
  policy.Insert(TestBlock(1, 0, 0), 1);
  policy.Insert(TestBlock(2, 0, 0), 2);
  const auto not_first = [](const Victim& victim) { return victim.id != TestKeyId(1); };
  EXPECT_EQ(policy.NextVictim(10, not_first).victim.id, TestKeyId(2));
  EXPECT_EQ(policy.NextVictim(11, AlwaysEvict).victim.id, TestKeyId(2));
  EXPECT_EQ(policy.NextVictim(10 + EvictionPolicy::kRefusedForUs, AlwaysEvict).victim.id,
            TestKeyId(1));
}

TEST(LeafLru, TakesARefusedLeafOutWhenItGetsAChildOrGoes) {
  LeafLru policy;
  const PolicyHandle parent = policy.Insert(TestBlock(1, 0, 0), 1);
  const PolicyHandle other = policy.Insert(TestBlock(9, 0, 0), 1);
  const auto never = [](const Victim&) { return false; };
  EXPECT_EQ(policy.NextVictim(5, never).outcome, Outcome::kNone);
  policy.Touch(parent, 6);
  policy.SetHasOtherHolder(other, true);
  policy.Insert(TestBlock(2, 1, 1), 7);
  policy.Erase(other);
  EXPECT_EQ(EvictOne(policy, 2'000'000), TestKeyId(2));
  EXPECT_EQ(EvictOne(policy, 2'000'000), TestKeyId(1));
  EXPECT_EQ(policy.NextVictim(2'000'000, AlwaysEvict).outcome, Outcome::kNone);
}

TEST(LeafLru, EvictsMixedSizesToWithinOneBlockOfTheTarget) {
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  LeafLru policy;
  std::uint64_t largest = 0;
  for (std::uint64_t n = 1; n <= 2000; ++n) {
    PolicyBlock block = TestBlock(n, 0, 0);
    // From 4 KiB to past 4 GiB: sums must not be of 32 bits.
    block.size_bytes = (std::uint64_t{4096} << (random() % 22)) + random() % 4096;
    largest = std::max(largest, block.size_bytes);
    policy.Insert(block, static_cast<std::int64_t>(n));
  }
  const std::uint64_t before = policy.used_bytes();
  ASSERT_GT(before, std::uint64_t{1} << 32U);
  const std::uint64_t target = before / 3;
  std::uint64_t evicted = 0;
  while (policy.used_bytes() > before - target) {
    const auto choice = policy.NextVictim(5000, AlwaysEvict);
    ASSERT_EQ(choice.outcome, Outcome::kVictim);
    evicted += choice.victim.size_bytes;
    policy.Erase(choice.victim.handle);
  }
  EXPECT_EQ(policy.used_bytes(), before - evicted);
  EXPECT_GE(evicted, target);
  EXPECT_LT(evicted, target + largest);
}

TEST(LeafLru, DoesNotLockUpChainsThatContradictEachOther) {
  LeafLru policy;
  // A client puts a -> b, loses a, and puts b -> a: a ring if both links were kept.
  const PolicyHandle a = policy.Insert(TestBlock(1, 0, 0), 1);
  policy.Insert(TestBlock(2, 1, 1), 1);
  policy.Erase(a);
  policy.Insert(TestBlock(1, 2, 1), 2);
  // A block that names itself.
  policy.Insert(TestBlock(3, 3, 1), 3);
  std::size_t evicted = 0;
  while (!EvictOne(policy, 10).none()) ++evicted;
  EXPECT_EQ(evicted, 3U);
  EXPECT_EQ(policy.block_count(), 0U);
}

}  // namespace
}  // namespace kvfabric
