// What leaves, when, and how much of it: watermarks, quotas, lanes, pins.

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kBlock = 4096;

TEST(Eviction, SettlesAtTheLowWatermark) {
  const std::uint64_t capacity = 4 * kMiB;
  EngineFixture f(PoolOptions(capacity));
  const NamespaceRef ns = MakeNamespace();
  for (int chain = 0; chain < 60; ++chain) {
    ASSERT_TRUE(f.PutChain(ns, std::to_string(chain), 20, kBlock).ok());
    ASSERT_LE(f.engine->Stats().used_bytes, capacity);
    if (chain % 7 == 0) f.background.RunAll();
  }
  while (f.engine->Stats().used_bytes <= capacity * 9 / 10) {
    ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(f.clock.UnixMicros()), kBlock)).ok());
  }
  f.background.RunAll();
  const auto used = static_cast<double>(f.engine->Stats().used_bytes);
  EXPECT_LE(used, 0.80 * static_cast<double>(capacity));
  EXPECT_GE(used, 0.78 * static_cast<double>(capacity));
}

// Mixed sizes: what is evicted is counted in bytes, to within one block of the target.
TEST(Eviction, StopsWithinOneBlockOfItsTarget) {
  std::mt19937_64 random(TestSeed());
  const std::uint64_t capacity = 16 * kMiB;
  EngineFixture f(PoolOptions(capacity));
  const NamespaceRef ns = MakeNamespace();
  const std::uint64_t sizes[] = {500, 10'000, 200'000};
  for (int i = 0; f.engine->Stats().used_bytes <= capacity * 9 / 10; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), sizes[random() % 3])).ok());
  }
  f.background.RunAll();
  EXPECT_LE(f.engine->Stats().used_bytes, capacity * 8 / 10);
  EXPECT_GE(f.engine->Stats().used_bytes + RoundUpToSlot(200'000), capacity * 8 / 10);
}

TEST(Eviction, ShortensChainsFromTheTail) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int chain = 0; chain < 30; ++chain) {
    ASSERT_TRUE(f.PutChain(ns, std::to_string(chain), 16, kBlock).ok());
  }
  std::uint32_t hits = 0;
  for (int chain = 0; chain < 30; ++chain) hits += f.ChainHits(ns, std::to_string(chain));
  EXPECT_EQ(hits, f.engine->Stats().blocks) << "a block was left behind its missing parent";
  EXPECT_GT(f.engine->Stats().evicted, 200U);
}

TEST(Eviction, KeepsWhatIsTouched) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  ASSERT_TRUE(f.PutChain(ns, "hot", 16, kBlock).ok());
  std::vector<KeyId> ids;
  for (std::uint32_t i = 0; i < 16; ++i) ids.push_back(ChainHeader(ns, "hot", i, 0).id);
  for (int chain = 0; chain < 100; ++chain) {
    ASSERT_TRUE(f.PutChain(ns, std::to_string(chain), 8, kBlock).ok());
    f.engine->Touch(ids);
    f.background.RunAll();
  }
  EXPECT_EQ(f.ChainHits(ns, "hot"), 16U);
}

TEST(Eviction, CountsARepeatedPutAsAUse) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), kBlock)).ok());
    const Status again = f.Put(MakeHeader(ns, "again", kBlock));
    ASSERT_EQ(again.ok(), i == 0);
  }
  EXPECT_TRUE(f.Has(MakeHeader(ns, "again", 0)));
}

// However full, and with every block of the same stamp: the block just put is there afterwards.
TEST(Eviction, NeverTakesTheBlockThatJustCame) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 2000; ++i) {
    const BlockHeader header = MakeHeader(ns, std::to_string(i), kBlock);
    ASSERT_TRUE(PutBlock(*f.engine, header).ok());  // the clock stands still
    ASSERT_TRUE(f.Has(header)) << i;
  }
}

TEST(Eviction, FailsAPutInBoundedTimeWhenAllIsPinned) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  std::vector<PinnedBlock> pins;
  for (int i = 0; i < 4 * 1024; ++i) {
    pins.push_back(PutBlock(*f.engine, MakeHeader(ns, std::to_string(i), 1024)).value());
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(f.Put(MakeHeader(ns, "one more", 1024)).code(), StatusCode::kResourceExhausted);
    f.background.RunAll();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, TimeScale() * seconds(1));
  EXPECT_EQ(f.engine->Stats().no_space, 20U);
  pins.clear();
  f.clock.Advance(seconds(2));
  EXPECT_TRUE(f.Put(MakeHeader(ns, "one more", 1024)).ok());
}

TEST(Eviction, TakesAnotherLeafWhenTheBlockTableIsFull) {
  CacheEngine::Options options = PoolOptions(4 * kMiB);
  options.max_blocks = 100;
  EngineFixture f(options);
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), 256)).ok());
    ASSERT_LE(f.engine->Stats().blocks, 100U);
  }
  EXPECT_TRUE(f.Has(MakeHeader(ns, "299", 0)));
  EXPECT_FALSE(f.Has(MakeHeader(ns, "0", 0)));
}

TEST(Eviction, HoldsQuotasHardAndTakesTheTenantsOwn) {
  CacheEngine::Options options = PoolOptions(4 * kMiB);
  options.quotas = {{.tenant = "small", .dram_bytes = 10 * kBlock}};
  EngineFixture f(options);
  const NamespaceRef small = MakeNamespace("small");
  const NamespaceRef other = MakeNamespace("other");
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(f.Put(MakeHeader(other, std::to_string(i), kBlock)).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(small, std::to_string(i), kBlock)).ok());
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(f.Has(MakeHeader(other, std::to_string(i), 0))) << i;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(f.Has(MakeHeader(small, std::to_string(i), 0)), i >= 90) << i;
  }
  EXPECT_EQ(f.engine->Stats().used_bytes, 30 * kBlock);
  const PinnedBlock pin = *f.engine->PinById(MakeHeader(small, "99", 0).id);
  EXPECT_EQ(f.Put(MakeHeader(small, "huge", 10 * kBlock)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Has(MakeHeader(other, "0", 0)));
  EXPECT_TRUE(f.Has(MakeHeader(small, "99", 0)));
}

TEST(Eviction, TakesTheColdestOverAllTenants) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef a = MakeNamespace("a");
  const NamespaceRef b = MakeNamespace("b");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(f.Put(MakeHeader(a, std::to_string(i), kBlock)).ok());
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(f.Put(MakeHeader(b, std::to_string(i), kBlock)).ok());
  f.background.RunAll();
  for (int i = 0; i < 150; ++i) EXPECT_TRUE(f.Has(MakeHeader(b, std::to_string(i), 0))) << i;
  EXPECT_LT(f.engine->Stats().blocks, 210U);
}

TEST(Eviction, TakesTheLanesOfABlockTogether) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  constexpr std::uint16_t kRanks = 4;
  for (std::uint32_t chain = 0; chain < 40; ++chain) {
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      for (std::uint32_t depth = 0; depth < 5; ++depth) {
        ASSERT_TRUE(f.Put(ChainHeader(ns, std::to_string(chain), depth, kBlock, {0, rank})).ok());
      }
    }
    f.background.RunAll();
  }
  std::size_t whole = 0;
  for (std::uint32_t chain = 0; chain < 40; ++chain) {
    for (std::uint32_t depth = 0; depth < 5; ++depth) {
      std::size_t lanes = 0;
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
        lanes += f.Has(ChainHeader(ns, std::to_string(chain), depth, 0, {0, rank})) ? 1 : 0;
      }
      EXPECT_TRUE(lanes == 0 || lanes == kRanks) << chain << "/" << depth << ": " << lanes;
      whole += lanes == kRanks ? 1 : 0;
    }
  }
  EXPECT_GT(whole, 40U);
}

TEST(Eviction, KeepsAllLanesOfABlockWhenOneIsPinned) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  const BlockHeader first = MakeHeader(ns, "k", kBlock, {0, 0});
  const BlockHeader second = MakeHeader(ns, "k", kBlock, {0, 1});
  ASSERT_TRUE(f.Put(first).ok());
  ASSERT_TRUE(f.Put(second).ok());
  std::optional<PinnedBlock> pin = f.engine->PinById(second.id);
  const auto fill = [&](const std::string& name) {
    for (int i = 0; i < 400; ++i) {
      ASSERT_TRUE(f.Put(MakeHeader(ns, name + std::to_string(i), kBlock, {0, 0})).ok());
    }
  };
  fill("x");
  EXPECT_TRUE(f.Has(first));
  pin.reset();
  f.clock.Advance(seconds(2));
  fill("y");
  EXPECT_FALSE(f.Has(first));
  EXPECT_FALSE(f.Has(second));
}

TEST(Eviction, TakesBlocksWithAnotherHolderFirst) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), kBlock)).ok());
  for (int i = 150; i < 200; ++i) f.engine->SetHasOtherHolder(IdOf(ns, std::to_string(i)), true);
  for (int i = 0; i < 56; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(ns, "new" + std::to_string(i), kBlock)).ok());
  }
  f.background.RunAll();
  for (int i = 150; i < 190; ++i) EXPECT_FALSE(f.Has(MakeHeader(ns, std::to_string(i), 0))) << i;
  EXPECT_TRUE(f.Has(MakeHeader(ns, "140", 0)));
}

TEST(Eviction, TellsTheAgeOfTheColdestLeaf) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  EXPECT_FALSE(f.engine->ColdestAge().has_value());
  ASSERT_TRUE(f.Put(MakeHeader(ns, "old", kBlock)).ok());
  f.clock.Advance(seconds(5));
  ASSERT_TRUE(f.Put(MakeHeader(ns, "new", kBlock)).ok());
  f.clock.Advance(seconds(1));
  EXPECT_EQ(*f.engine->ColdestAge(), seconds(6) + std::chrono::microseconds(10));
  EXPECT_EQ(*f.engine->ColdestSpillableAge(), *f.engine->ColdestAge());
  f.engine->SetHasOtherHolder(IdOf(ns, "old"), true);
  EXPECT_EQ(*f.engine->ColdestSpillableAge(), seconds(1));
  BlockHeader travelled = MakeHeader(ns, "travelled", kBlock);
  travelled.last_touch_us = std::chrono::duration_cast<std::chrono::microseconds>(
                                (f.clock.Now() - seconds(60)).time_since_epoch())
                                .count();
  ASSERT_TRUE(f.Put(travelled, BlockOrigin::kSpill).ok());
  EXPECT_GE(*f.engine->ColdestAge(), seconds(60));
}

TEST(Eviction, FollowsASmallerCapacity) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 800; ++i) ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), kBlock)).ok());
  ASSERT_TRUE(f.engine->Reconfigure(PoolOptions(kMiB)).ok());
  f.background.RunAll();
  EXPECT_LE(f.engine->Stats().used_bytes, kMiB * 8 / 10);
  CacheEngine::Options other = PoolOptions(kMiB);
  other.pool_uid = "another";
  EXPECT_EQ(f.engine->Reconfigure(other).code(), StatusCode::kInvalidArgument);
}

// A day's worth of puts into a pool far too small: every one succeeds, nothing wedges.
TEST(Eviction, GoesOnUnderLastingOverload) {
  std::mt19937_64 random(TestSeed());
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (int i = 0; i < 20'000; ++i) {
    const Status put = f.Put(MakeHeader(ns, std::to_string(i), 10'000));
    ASSERT_TRUE(put.ok()) << i << ": " << put.ToString();
    if (random() % 50 == 0) f.background.RunOne();
    f.clock.Advance(milliseconds(4320));
  }
  EXPECT_EQ(f.engine->Stats().no_space, 0U);
  EXPECT_GT(f.engine->Stats().evicted, 19'000U);
}

// The same with 79 slot sizes in nine memfds: blocks share slots that are not quite theirs, most
// memory stays in use and hardly a put is dropped.
TEST(Eviction, GoesOnWithManyMoreSizesThanMemfds) {
  std::mt19937_64 random(TestSeed());
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  std::uint64_t used_sum = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const Status put = f.Put(MakeHeader(ns, std::to_string(i), 1 + random() % 20'000));
    ASSERT_TRUE(put.ok() || put.code() == StatusCode::kResourceExhausted) << put.ToString();
    if (random() % 50 == 0) f.background.RunOne();
    f.clock.Advance(milliseconds(4320));
    used_sum += f.engine->Stats().used_bytes;
  }
  EXPECT_LT(f.engine->Stats().no_space, 1000U);
  EXPECT_GT(used_sum / 20'000, 4 * kMiB * 2 / 5);
}

// A tenant within its quota, and all memory with others: the coldest memfd is emptied for it,
// after the leases in it end.
TEST(Eviction, EmptiesTheColdestMemfdForATenantThatNeedsMemory) {
  EngineFixture f(PoolOptions(8 * kMiB), 4 * kMiB);
  const NamespaceRef a = MakeNamespace("a");
  const NamespaceRef b = MakeNamespace("b");
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(a, std::to_string(i), kMiB / 2)).ok());
  }
  std::optional<PinnedBlock> reader = f.engine->PinById(IdOf(a, "1"));
  f.engine->Touch({IdOf(a, "0")});
  f.clock.Advance(seconds(2));
  for (int i = 2; i < 8; ++i) f.engine->Touch({IdOf(a, std::to_string(i))});
  const BlockHeader wanted = MakeHeader(b, "wanted", kMiB / 2);
  EXPECT_EQ(f.Put(wanted).code(), StatusCode::kResourceExhausted);
  f.background.RunAll();
  EXPECT_FALSE(f.Has(MakeHeader(a, "0", 0)));
  EXPECT_FALSE(f.Has(MakeHeader(a, "1", 0))) << "no new reader comes in while it is emptied";
  EXPECT_TRUE(HoldsBytesOf(reader->bytes(), "1", 0));
  EXPECT_EQ(f.Put(wanted).code(), StatusCode::kResourceExhausted) << "a lease holds the memfd";
  for (int i = 2; i < 8; ++i) EXPECT_TRUE(f.Has(MakeHeader(a, std::to_string(i), 0))) << i;
  reader.reset();
  EXPECT_TRUE(f.Put(wanted).ok());
}

}  // namespace
}  // namespace kvfabric
