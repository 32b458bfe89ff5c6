// Blocks that come from and go to peers: spill, transient blocks, what the observer hears.

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace kvfabric {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kBlock = 4096;

class FakePeers final : public SpillTarget {
 public:
  bool Take(PinnedBlock block) override {
    ++offered;
    if (!accept) return false;
    held.push_back(std::move(block));
    return true;
  }
  bool accept = true;
  int offered = 0;
  std::deque<PinnedBlock> held;
};

class Log final : public BlockObserver {
 public:
  void OnCommitted(const BlockHeader& header, BlockOrigin origin) override {
    lines.push_back("+" + header.key + (header.has_other_holder ? " copy" : "") +
                    (origin == BlockOrigin::kTransient ? " kept" : ""));
  }
  void OnRemoved(const BlockHeader& header) override { lines.push_back("-" + header.key); }
  std::vector<std::string> lines;
};

struct SpillFixture : EngineFixture {
  SpillFixture() : EngineFixture(PoolOptions(kMiB)) { engine->SetSpillTarget(&peers); }
  ~SpillFixture() { peers.held.clear(); }
  void FillAboveHigh(const std::string& name) {
    for (int i = 0;
         engine->Stats().used_bytes - engine->Stats().pending_spill_bytes <= kMiB * 9 / 10; ++i) {
      ASSERT_TRUE(Put(MakeHeader(ns, name + std::to_string(i), kBlock)).ok());
    }
  }
  NamespaceRef ns = MakeNamespace();
  FakePeers peers;
};

TEST(Spill, HandsLeavesOverAndKeepsThemReadableUntilTheTakerIsDone) {
  SpillFixture f;
  f.FillAboveHigh("k");
  f.background.RunAll();
  const EngineStats stats = f.engine->Stats();
  ASSERT_FALSE(f.peers.held.empty());
  EXPECT_EQ(stats.spilled, f.peers.held.size());
  EXPECT_EQ(stats.evicted, 0U);
  EXPECT_EQ(stats.pending_spill_bytes, f.peers.held.size() * kBlock);
  EXPECT_LE(stats.pending_spill_bytes, kMiB * 5 / 100) << "the queue is bounded";
  const BlockHeader first = f.peers.held.front().header();
  EXPECT_EQ(first.key, "k0") << "coldest first";
  EXPECT_TRUE(f.Has(first));
  EXPECT_EQ(f.Put(first).code(), StatusCode::kAlreadyExists);
  f.peers.held.pop_front();
  EXPECT_FALSE(f.Has(first));
  EXPECT_EQ(f.engine->Stats().pending_spill_bytes, f.peers.held.size() * kBlock);
}

TEST(Spill, GoesOnDownToTheLowWatermarkAsThePeersTakeBlocks) {
  SpillFixture f;
  f.FillAboveHigh("k");
  const std::uint64_t blocks = f.engine->Stats().blocks;
  for (int round = 0; round < 100; ++round) {
    f.background.RunAll();
    if (!f.peers.held.empty()) f.peers.held.pop_front();
  }
  const EngineStats stats = f.engine->Stats();
  EXPECT_LE(stats.used_bytes, kMiB * 80 / 100);
  EXPECT_GE(stats.used_bytes, kMiB * 78 / 100);
  EXPECT_EQ(stats.evicted, 0U) << "none was dropped while there was time to hand it over";
  EXPECT_EQ(stats.spilled, blocks - stats.blocks);
}

// Peers that never finish: the queue stays full, cold blocks are dropped, and no PUT waits.
TEST(Spill, DropsInsteadOfWaitingWhenPeersHang) {
  SpillFixture f;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(f.Put(MakeHeader(f.ns, std::to_string(i), kBlock)).ok()) << i;
    f.background.RunAll();
  }
  const EngineStats stats = f.engine->Stats();
  EXPECT_EQ(stats.no_space, 0U);
  EXPECT_GT(stats.evicted, 1500U);
  EXPECT_LE(stats.pending_spill_bytes, kMiB * 5 / 100);
  EXPECT_LE(stats.used_bytes, kMiB);
}

TEST(Spill, DropsABlockLargerThanTheWholeQueue) {
  SpillFixture f;
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(f.Put(MakeHeader(f.ns, std::to_string(i), kMiB / 10)).ok());
  f.background.RunAll();
  EXPECT_EQ(f.peers.offered, 0);
  EXPECT_LE(f.engine->Stats().used_bytes, kMiB * 80 / 100);
}

TEST(Spill, DropsWhatTheTargetRefuses) {
  SpillFixture f;
  f.peers.accept = false;
  f.FillAboveHigh("k");
  f.background.RunAll();
  const EngineStats stats = f.engine->Stats();
  EXPECT_GT(f.peers.offered, 10);
  EXPECT_EQ(stats.spilled, 0U);
  EXPECT_EQ(stats.evicted, static_cast<std::uint64_t>(f.peers.offered));
  EXPECT_EQ(stats.pending_spill_bytes, 0U);
  EXPECT_LE(stats.used_bytes, kMiB * 80 / 100);
}

TEST(Spill, OffersNeitherCopiesNorWhatWasSpilledBefore) {
  SpillFixture f;
  for (int i = 0; i < 100; ++i) {
    BlockHeader header = MakeHeader(f.ns, "in" + std::to_string(i), kBlock);
    header.spilled_in = true;
    ASSERT_TRUE(f.Put(header, BlockOrigin::kSpill).ok());
    header = MakeHeader(f.ns, "copy" + std::to_string(i), kBlock);
    header.has_other_holder = true;
    ASSERT_TRUE(f.Put(header, BlockOrigin::kReplica).ok());
  }
  f.FillAboveHigh("k");
  f.background.RunAll();
  EXPECT_EQ(f.peers.offered, 0);
  EXPECT_GT(f.engine->Stats().evicted, 20U);
}

TEST(Spill, CarriesLastTouchAndFlagsAsOfNow) {
  SpillFixture f;
  ASSERT_TRUE(f.Put(MakeHeader(f.ns, "cold", kBlock)).ok());
  f.clock.Advance(seconds(3));
  f.engine->Touch({IdOf(f.ns, "cold")});
  const auto touched =
      std::chrono::duration_cast<std::chrono::microseconds>(f.clock.Now().time_since_epoch())
          .count();
  f.FillAboveHigh("k");
  f.background.RunAll();
  ASSERT_FALSE(f.peers.held.empty());
  EXPECT_EQ(f.peers.held.front().header().key, "cold");
  EXPECT_EQ(f.peers.held.front().header().last_touch_us, touched);
}

TEST(Spill, SurvivesADeleteOfABlockUnderWay) {
  SpillFixture f;
  f.FillAboveHigh("k");
  f.background.RunAll();
  const BlockHeader header = f.peers.held.front().header();
  EXPECT_TRUE(f.engine->Delete(header.id));
  EXPECT_FALSE(f.Has(header));
  EXPECT_TRUE(HoldsBytesOf(f.peers.held.front().bytes(), header.key, 0));
  ASSERT_TRUE(f.Put(header).ok());
  f.peers.held.clear();
  EXPECT_TRUE(f.Has(header)) << "the end of the spill must not remove the key's new life";
  EXPECT_EQ(f.engine->Stats().pending_spill_bytes, 0U);
}

TEST(Spill, EndsAfterTheEngine) {
  SpillFixture f;
  f.FillAboveHigh("k");
  f.background.RunAll();
  const std::string key = f.peers.held.front().header().key;
  f.engine.reset();
  EXPECT_TRUE(HoldsBytesOf(f.peers.held.front().bytes(), key, 0));
  f.peers.held.clear();
  EXPECT_EQ(f.arena->stats().slot_bytes, 0U);
}

TEST(TransientBlock, GoesWithItsLastReader) {
  EngineFixture f(PoolOptions(kMiB));
  const BlockHeader header = MakeHeader(MakeNamespace(), "fetched", kBlock);
  std::optional<PinnedBlock> first = PutBlock(*f.engine, header, BlockOrigin::kTransient).value();
  std::optional<PinnedBlock> second = f.engine->Pin(header.id, header.key, {});
  EXPECT_EQ(f.engine->Stats().transient_bytes, kBlock);
  first.reset();
  EXPECT_TRUE(f.Has(header));
  second.reset();
  EXPECT_FALSE(f.Has(header));
  EXPECT_EQ(f.engine->Stats().used_bytes, 0U);
  EXPECT_EQ(f.engine->Stats().transient_bytes, 0U);
  EXPECT_EQ(f.arena->stats().slot_bytes, 0U);
}

TEST(TransientBlock, StaysWhenKeptAndGoesBeforeOthers) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  const BlockHeader header = MakeHeader(ns, "fetched", kBlock);
  {
    const PinnedBlock pin = PutBlock(*f.engine, header, BlockOrigin::kTransient).value();
    EXPECT_TRUE(f.engine->Keep(header.id));
    EXPECT_TRUE(f.engine->Keep(header.id));
  }
  EXPECT_TRUE(f.Has(header));
  EXPECT_TRUE(f.engine->PinById(header.id)->header().has_other_holder);
  EXPECT_EQ(f.engine->Stats().transient_bytes, 0U);
  EXPECT_EQ(f.engine->Stats().used_bytes, kBlock);
  EXPECT_FALSE(f.engine->Keep(IdOf(ns, "nobody")));
  f.engine->Touch({header.id});
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(f.Put(MakeHeader(ns, std::to_string(i), kBlock)).ok());
  EXPECT_FALSE(f.Has(header));
}

TEST(TransientBlock, IsBoundedByATenthOfTheTier) {
  EngineFixture f(PoolOptions(kMiB));
  const NamespaceRef ns = MakeNamespace();
  std::vector<PinnedBlock> pins;
  for (int i = 0; i < 100; ++i) {
    auto put =
        PutBlock(*f.engine, MakeHeader(ns, std::to_string(i), kBlock), BlockOrigin::kTransient);
    if (!put.ok()) {
      EXPECT_EQ(put.status().code(), StatusCode::kResourceExhausted);
      break;
    }
    pins.push_back(std::move(put).value());
  }
  EXPECT_EQ(pins.size(), kMiB / 10 / kBlock);
  EXPECT_TRUE(f.Put(MakeHeader(ns, "ordinary", kBlock)).ok());
  pins.pop_back();
  EXPECT_TRUE(PutBlock(*f.engine, MakeHeader(ns, "next", kBlock), BlockOrigin::kTransient).ok());
}

TEST(BlockObserver, HearsEveryComingAndGoingInOrder) {
  EngineFixture f(PoolOptions(kMiB));
  Log log;
  f.engine->SetObserver(&log);
  const NamespaceRef ns = MakeNamespace();
  ASSERT_TRUE(f.Put(MakeHeader(ns, "a", kBlock)).ok());
  EXPECT_FALSE(f.Put(MakeHeader(ns, "a", kBlock)).ok());
  f.engine->Delete(IdOf(ns, "a"));
  ASSERT_TRUE(f.Put(MakeHeader(ns, "a", kBlock)).ok());
  { PutBlock(*f.engine, MakeHeader(ns, "t", kBlock), BlockOrigin::kTransient).value(); }
  {
    const PinnedBlock pin =
        PutBlock(*f.engine, MakeHeader(ns, "u", kBlock), BlockOrigin::kTransient).value();
    f.engine->Keep(IdOf(ns, "u"));
  }
  f.engine->Clear();
  std::vector<std::string> lines = log.lines;
  ASSERT_EQ(lines.size(), 6U);
  std::sort(lines.end() - 2, lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"+a", "-a", "+a", "+u copy kept", "-a", "-u"}));
}

}  // namespace
}  // namespace kvfabric
