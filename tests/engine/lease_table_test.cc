#include "agent/engine/lease_table.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/engine/engine_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct LeaseFixture : EngineFixture {
  explicit LeaseFixture(std::uint64_t tier_bytes = 4 * kMiB)
      : EngineFixture(PoolOptions(4 * kMiB)) {
    leases.SetPoolBytes("pool", tier_bytes);
  }
  PinnedBlock Block(int i, std::uint64_t length_bytes = 1000) {
    const BlockHeader header = MakeHeader(ns, "k" + std::to_string(i), length_bytes);
    auto put = PutBlock(*engine, header);
    return put.ok() ? std::move(put).value() : *engine->PinById(header.id);
  }
  std::vector<PinnedBlock> Blocks(int first, int count, std::uint64_t length_bytes = 1000) {
    std::vector<PinnedBlock> blocks;
    for (int i = first; i < first + count; ++i) blocks.push_back(Block(i, length_bytes));
    return blocks;
  }
  KeyId Id(int i) const { return IdOf(ns, "k" + std::to_string(i)); }

  NamespaceRef ns = MakeNamespace();
  LeaseTable leases{clock};
};

TEST(LeaseTable, KeepsBlocksPinnedUntilRelease) {
  LeaseFixture f;
  const auto session = f.leases.OpenSession();
  const auto lease = *f.leases.Grant(session, f.Blocks(0, 3));
  EXPECT_EQ(f.engine->Stats().pinned_bytes, 3 * 1024U);
  for (int i : {0, 1, 2, 1, 0, 2}) {
    const auto block = f.leases.Find(session, lease, f.Id(i));
    ASSERT_TRUE(block.has_value());
    EXPECT_TRUE(HoldsBytesOf(block->bytes(), "k" + std::to_string(i), 0));
  }
  EXPECT_FALSE(f.leases.Find(session, lease, f.Id(7)).has_value());
  EXPECT_TRUE(f.leases.Release(session, lease));
  EXPECT_FALSE(f.leases.Release(session, lease));
  EXPECT_FALSE(f.leases.Find(session, lease, f.Id(0)).has_value());
  EXPECT_EQ(f.engine->Stats().pinned_bytes, 0U);
}

TEST(LeaseTable, KeepsSessionsApart) {
  LeaseFixture f;
  const auto mine = f.leases.OpenSession();
  const auto other = f.leases.OpenSession();
  const auto lease = *f.leases.Grant(mine, f.Blocks(0, 1));
  EXPECT_FALSE(f.leases.Find(other, lease, f.Id(0)).has_value());
  EXPECT_FALSE(f.leases.Renew(other, lease));
  EXPECT_FALSE(f.leases.Release(other, lease));
  EXPECT_FALSE(f.leases.Add(other, lease, f.Block(1)));
  EXPECT_TRUE(f.leases.Has(mine, lease));
  EXPECT_FALSE(f.leases.Grant(99, f.Blocks(0, 1)).has_value());
}

// A client that looks up and never reads, and one that dies: nothing stays pinned.
TEST(LeaseTable, ReturnsToZeroAfterExpiryAndSessionEnd) {
  LeaseFixture f;
  const auto forgetful = f.leases.OpenSession();
  const auto dying = f.leases.OpenSession();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(f.leases.Grant(forgetful, f.Blocks(i * 5, 5)).has_value());
    ASSERT_TRUE(f.leases.Grant(dying, f.Blocks(i * 5, 5)).has_value());
  }
  f.leases.CloseSession(dying);
  EXPECT_EQ(f.leases.stats().leases, 20U);
  f.clock.Advance(f.leases.ttl() - milliseconds(1));
  EXPECT_EQ(f.leases.ExpireNow(), 0U);
  f.clock.Advance(milliseconds(1));
  EXPECT_EQ(f.leases.ExpireNow(), 20U);
  const LeaseTableStats stats = f.leases.stats();
  EXPECT_EQ(stats.leases, 0U);
  EXPECT_EQ(stats.pins, 0U);
  EXPECT_EQ(stats.pinned_bytes, 0U);
  EXPECT_EQ(stats.sessions, 1U);
  EXPECT_EQ(f.engine->Stats().pinned_bytes, 0U);
}

TEST(LeaseTable, EndsALeaseByTimeBeforeItIsSwept) {
  LeaseFixture f;
  const auto session = f.leases.OpenSession();
  const auto lease = *f.leases.Grant(session, f.Blocks(0, 1));
  f.clock.Advance(seconds(9));
  EXPECT_TRUE(f.leases.Renew(session, lease));
  f.clock.Advance(seconds(9));
  EXPECT_TRUE(f.leases.Find(session, lease, f.Id(0)).has_value());
  f.clock.Advance(seconds(1));
  EXPECT_FALSE(f.leases.Find(session, lease, f.Id(0)).has_value());
  EXPECT_FALSE(f.leases.Renew(session, lease));
  EXPECT_FALSE(f.leases.Has(session, lease));
}

TEST(LeaseTable, LimitsASessionToAQuarterAndAllToHalf) {
  LeaseFixture f(100'000);
  const auto first = f.leases.OpenSession();
  const auto second = f.leases.OpenSession();
  const auto third = f.leases.OpenSession();
  const LeaseTable::Prefix prefix = f.leases.GrantPrefix(first, f.Blocks(0, 30));
  EXPECT_EQ(prefix.granted, 25U);
  EXPECT_NE(prefix.lease, 0U);
  EXPECT_FALSE(f.leases.Grant(first, f.Blocks(40, 1)).has_value());
  EXPECT_FALSE(f.leases.Add(first, prefix.lease, f.Block(41)));
  EXPECT_FALSE(f.leases.Grant(second, f.Blocks(50, 26)).has_value());
  EXPECT_EQ(f.leases.stats().pins, 25U) << "a refused grant keeps nothing";
  ASSERT_TRUE(f.leases.Grant(second, f.Blocks(50, 25)).has_value());
  EXPECT_FALSE(f.leases.Grant(third, f.Blocks(80, 1)).has_value());
  EXPECT_EQ(f.leases.GrantPrefix(third, f.Blocks(80, 1)).lease, 0U);
  EXPECT_EQ(f.leases.stats().pinned_bytes, 50'000U);
  EXPECT_EQ(f.engine->Stats().pinned_bytes, 50U * 1024U) << "what was refused is not pinned";
  EXPECT_GT(f.leases.stats().refused, 0U);
  f.leases.CloseSession(first);
  EXPECT_TRUE(f.leases.Grant(third, f.Blocks(80, 1)).has_value());
}

TEST(LeaseTable, CountsABlockOnceHoweverManyLeasesNameIt) {
  LeaseFixture f(100'000);
  const auto session = f.leases.OpenSession();
  std::vector<LeaseTable::LeaseId> granted;
  for (int i = 0; i < 50; ++i) {
    const auto lease = f.leases.Grant(session, f.Blocks(0, 20));
    ASSERT_TRUE(lease.has_value()) << i;
    granted.push_back(*lease);
  }
  EXPECT_EQ(f.leases.stats().pinned_bytes, 20'000U);
  for (std::size_t i = 1; i < granted.size(); ++i) f.leases.Release(session, granted[i]);
  EXPECT_EQ(f.leases.stats().pinned_bytes, 20'000U);
  f.leases.Release(session, granted[0]);
  EXPECT_EQ(f.leases.stats().pinned_bytes, 0U);
}

// A block that was deleted while leased and put again with another size: both are in memory, and
// the budgets get back what each of them took.
TEST(LeaseTable, CountsABlockPutAgainByItsOwnSize) {
  for (const auto& [first, second] : {std::pair{1'000U, 9'000U}, std::pair{9'000U, 1'000U}}) {
    LeaseFixture f(100'000);
    const auto session = f.leases.OpenSession();
    std::vector<PinnedBlock> old(1, f.Block(0, first));
    const auto old_lease = *f.leases.Grant(session, std::move(old));
    ASSERT_TRUE(f.engine->Delete(f.Id(0)));
    std::vector<PinnedBlock> fresh(1, f.Block(0, second));
    const auto fresh_lease = *f.leases.Grant(session, std::move(fresh));
    EXPECT_EQ(f.leases.stats().pinned_bytes, 10'000U);
    f.leases.Release(session, old_lease);
    EXPECT_EQ(f.leases.stats().pinned_bytes, second);
    f.leases.Release(session, fresh_lease);
    EXPECT_EQ(f.leases.stats().pinned_bytes, 0U);
    EXPECT_EQ(f.leases.GrantPrefix(session, f.Blocks(1, 30)).granted, 25U);
  }
}

TEST(LeaseTable, GrantsNothingOfAPoolItDoesNotKnow) {
  LeaseFixture f;
  f.leases.SetPoolBytes("pool", 0);
  const auto session = f.leases.OpenSession();
  EXPECT_FALSE(f.leases.Grant(session, f.Blocks(0, 1)).has_value());
  EXPECT_TRUE(f.leases.Grant(session, {}).has_value()) << "a lease with blocks at peers only";
}

TEST(LeaseTable, LimitsPinsByCount) {
  LeaseFixture f;
  LeaseTable leases(f.clock, {.max_pins_per_session = 3, .max_pins = 5});
  leases.SetPoolBytes("pool", 100 * kMiB);
  const auto first = leases.OpenSession();
  const auto second = leases.OpenSession();
  EXPECT_EQ(leases.GrantPrefix(first, f.Blocks(0, 4)).granted, 3U);
  EXPECT_EQ(leases.GrantPrefix(second, f.Blocks(0, 4)).granted, 2U);
}

TEST(LeaseTable, DropsACompanionWithItsLease) {
  LeaseFixture f;
  const auto session = f.leases.OpenSession();
  auto companion = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = companion;
  const auto lease = *f.leases.Grant(session, {});
  ASSERT_TRUE(f.leases.Attach(session, lease, std::move(companion)));
  EXPECT_FALSE(alive.expired());
  f.clock.Advance(f.leases.ttl());
  f.leases.ExpireNow();
  EXPECT_TRUE(alive.expired());
  EXPECT_FALSE(f.leases.Attach(session, lease, std::make_shared<int>(2)));
}

TEST(LeaseTable, AddsToALeaseAndFindsInAnyOrder) {
  LeaseFixture f;
  const auto session = f.leases.OpenSession();
  const auto lease = *f.leases.Grant(session, f.Blocks(0, 50));
  std::mt19937_64 random(TestSeed());
  for (int i = 50; i < 60; ++i) ASSERT_TRUE(f.leases.Add(session, lease, f.Block(i)));
  for (int step = 0; step < 500; ++step) {
    const int i = static_cast<int>(random() % 60);
    const auto block = f.leases.Find(session, lease, f.Id(i));
    ASSERT_TRUE(block.has_value());
    EXPECT_EQ(block->header().id, f.Id(i));
  }
}

TEST(LeaseTable, ServesManyThreadsAndEndsAtZero) {
  LeaseFixture f;
  for (int i = 0; i < 100; ++i) f.Block(i);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&f, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      for (int round = 0; round < 40; ++round) {
        const auto session = f.leases.OpenSession();
        for (int step = 0; step < 10; ++step) {
          const int first = static_cast<int>(random() % 90);
          std::vector<PinnedBlock> blocks;
          for (int i = first; i < first + 10; ++i) blocks.push_back(*f.engine->PinById(f.Id(i)));
          const auto lease = f.leases.Grant(session, std::move(blocks));
          if (!lease.has_value()) continue;
          EXPECT_TRUE(f.leases.Find(session, *lease, f.Id(first + 3)).has_value());
          if (step % 2 == 0) f.leases.Release(session, *lease);
        }
        if (round % 2 == 0) f.leases.CloseSession(session);
        f.leases.ExpireNow();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  f.clock.Advance(f.leases.ttl());
  f.leases.ExpireNow();
  EXPECT_EQ(f.leases.stats().leases, 0U);
  EXPECT_EQ(f.engine->Stats().pinned_bytes, 0U);
}

}  // namespace
}  // namespace kvfabric
