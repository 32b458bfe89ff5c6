// Put, pin, read: what is visible when, and whose bytes they are.

#include "agent/engine/cache_engine.h"

#include <gtest/gtest.h>

#include <thread>

#include "agent/engine/lease_table.h"
#include "tests/engine/engine_fixture.h"

namespace kvfabric {
namespace {

TEST(CacheEngine, ShowsABlockOnlyAfterCommit) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  const BlockHeader header = MakeHeader(ns, "k", 5000);
  {
    Reservation stalled = f.engine->Reserve(header, BlockOrigin::kPut).value();
    Fill(stalled.bytes().first(2500), "k", 0);
    EXPECT_FALSE(f.Has(header));
    EXPECT_FALSE(f.engine->PinById(header.id).has_value());
    EXPECT_EQ(f.engine->Stats().blocks, 1U);
  }  // the writer went away half way
  EXPECT_FALSE(f.Has(header));
  EXPECT_EQ(f.engine->Stats().blocks, 0U);
  EXPECT_EQ(f.engine->Stats().used_bytes, 0U);
  EXPECT_EQ(f.arena->stats().slot_bytes, 0U);
  EXPECT_TRUE(f.Put(header).ok());
  EXPECT_TRUE(f.Has(header));
}

TEST(CacheEngine, ReadsBackBytesHeaderAndLocation) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  BlockHeader header = ChainHeader(ns, "c", 3, 70'000);
  header.slot = 77;
  header.metadata = "hint";
  const PinnedBlock put = PutBlock(*f.engine, header).value();
  const PinnedBlock block = *f.engine->Pin(header.id, header.key, header.lane);
  EXPECT_TRUE(HoldsBytesOf(block.bytes(), header.key, 0));
  EXPECT_EQ(block.bytes().size(), 70'000U);
  EXPECT_EQ(block.header().checksum, BlockChecksum(block.bytes()));
  EXPECT_EQ(block.header().slot, 77U);
  EXPECT_EQ(block.header().depth, 3U);
  EXPECT_EQ(block.header().parent, header.parent);
  EXPECT_EQ(block.header().metadata, "hint");
  const std::vector<MemfdRef> memfds = f.arena->MemfdsOf("a");
  ASSERT_EQ(memfds.size(), 1U);
  EXPECT_EQ(block.location().memfd_id, memfds[0]->id());
  EXPECT_EQ(memfds[0]->data() + block.location().offset, block.bytes().data());
}

TEST(CacheEngine, LetsTheFirstWriterWin) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const BlockHeader header = MakeHeader(MakeNamespace(), "k", 5000);
  Reservation first = f.engine->Reserve(header, BlockOrigin::kPut).value();
  Reservation second = f.engine->Reserve(header, BlockOrigin::kPut).value();
  Fill(first.bytes(), "k", 1);
  Fill(second.bytes(), "k", 2);
  const std::uint64_t second_sum = BlockChecksum(second.bytes());
  ASSERT_TRUE(std::move(second).Commit(second_sum).ok());
  const std::uint64_t first_sum = BlockChecksum(first.bytes());
  EXPECT_EQ(std::move(first).Commit(first_sum).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(HoldsBytesOf(f.engine->PinById(header.id)->bytes(), "k", 2));
  EXPECT_EQ(f.engine->Reserve(header, BlockOrigin::kPut).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(f.engine->Stats().blocks, 1U);
  EXPECT_EQ(f.engine->Stats().already_exists, 2U);
}

TEST(CacheEngine, RefusesBytesThatDoNotMatchTheirChecksum) {
  EngineFixture f(PoolOptions(4 * kMiB));
  BlockHeader header = MakeHeader(MakeNamespace(), "k", 5000);
  header.checksum = 12345;
  Reservation reservation = f.engine->Reserve(header, BlockOrigin::kPut).value();
  Fill(reservation.bytes(), "k", 0);
  const std::uint64_t computed = BlockChecksum(reservation.bytes());
  EXPECT_EQ(std::move(reservation).Commit(computed).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(f.Has(header));
  EXPECT_EQ(f.engine->Stats().used_bytes, 0U);
  EXPECT_EQ(f.engine->Stats().checksum_mismatches, 1U);
}

TEST(CacheEngine, MissesOnAnotherKeyOrLaneWithTheSameId) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  const BlockHeader first = MakeHeader(ns, "first", 5000);
  ASSERT_TRUE(f.Put(first).ok());
  BlockHeader second = MakeHeader(ns, "second", 5000);
  second.id = first.id;
  EXPECT_FALSE(f.engine->Pin(second.id, second.key, second.lane).has_value());
  EXPECT_FALSE(f.engine->Pin(first.id, first.key, Lane{.group = 1, .rank = 0}).has_value());
  EXPECT_TRUE(f.engine->Pin(first.id, first.key, first.lane).has_value());
  // Nor is it said to exist, and the first one's bytes stay.
  EXPECT_EQ(f.Put(second).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(HoldsBytesOf(f.engine->PinById(first.id)->bytes(), "first", 0));
}

// All ids share 8 bits: hundreds of keys meet in few places, and each reads its own bytes.
TEST(CacheEngine, KeepsKeysApartWhenTheirHashesCollide) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  std::vector<BlockHeader> headers;
  for (int i = 0; i < 400; ++i) {
    BlockHeader header = MakeHeader(ns, "key" + std::to_string(i), 300);
    for (std::size_t b = 1; b < 8; ++b) header.id.bytes[b] = std::byte{0};  // what hash() reads
    headers.push_back(header);
    ASSERT_TRUE(f.Put(header).ok());
  }
  for (std::size_t i = 0; i < headers.size(); i += 2) EXPECT_TRUE(f.engine->Delete(headers[i].id));
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto block = f.engine->Pin(headers[i].id, headers[i].key, {});
    ASSERT_EQ(block.has_value(), i % 2 == 1) << i;
    EXPECT_TRUE(!block.has_value() || HoldsBytesOf(block->bytes(), headers[i].key, 0));
  }
}

TEST(CacheEngine, RefusesHeadersThatBreakLimits) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  const std::uint64_t four_gib = std::uint64_t{1} << 32U;
  std::vector<BlockHeader> bad;
  for (const std::uint64_t length : {std::uint64_t{0}, kMiB + 1, four_gib - 4096, four_gib,
                                     four_gib + 1, four_gib + 4096, UINT64_MAX}) {
    bad.push_back(MakeHeader(ns, "k", length));
  }
  for (const std::size_t key_bytes : {std::size_t{0}, kMaxKeyBytes + 1}) {
    bad.push_back(MakeHeader(ns, "k", 100));
    bad.back().key = std::string(key_bytes, 'k');
  }
  bad.push_back(MakeHeader(ns, "k", 100));
  bad.back().metadata = std::string(kMaxBlockMetadataBytes + 1, 'm');
  bad.push_back(MakeHeader(ns, "k", 100));
  bad.back().ns = nullptr;
  bad.push_back(MakeHeader(ns, "k", 100));
  bad.back().id = KeyId{};
  bad.push_back(MakeHeader(MakeNamespace("a", NamespaceKind::kChain, "other pool"), "k", 100));
  for (const BlockHeader& header : bad) {
    EXPECT_EQ(f.engine->Reserve(header, BlockOrigin::kPut).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(f.engine->Stats().used_bytes, 0U);
}

TEST(CacheEngine, LogsWhatItRefusesOnceASecond) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const BlockHeader too_long = MakeHeader(MakeNamespace(), "k", UINT64_MAX);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(f.engine->Reserve(too_long, BlockOrigin::kPut).ok());
  f.clock.Advance(std::chrono::seconds(1));
  EXPECT_FALSE(f.engine->Reserve(too_long, BlockOrigin::kPut).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  EXPECT_NE(log.find("a larger arenaBytes takes larger ones"), std::string::npos) << log;
}

TEST(CacheEngine, CountsSlotsAndMetadata) {
  EngineFixture f(PoolOptions(4 * kMiB));
  BlockHeader header = MakeHeader(MakeNamespace(), "k", 300);
  header.metadata = std::string(1000, 'm');
  ASSERT_TRUE(f.Put(header).ok());
  EXPECT_EQ(f.engine->Stats().used_bytes, 512U + 1000U);
}

TEST(CacheEngine, MissesADeletedKeyAtOnceWhileItsReaderReadsOn) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const BlockHeader header = MakeHeader(MakeNamespace(), "k", 5000);
  ASSERT_TRUE(f.Put(header).ok());
  std::optional<PinnedBlock> pin = f.engine->PinById(header.id);
  EXPECT_TRUE(f.engine->Delete(header.id));
  EXPECT_FALSE(f.engine->Delete(header.id));
  EXPECT_FALSE(f.Has(header));
  ASSERT_TRUE(PutBlock(*f.engine, header, BlockOrigin::kPut, 9).ok());  // a new life of the key
  EXPECT_TRUE(HoldsBytesOf(pin->bytes(), "k", 0));
  EXPECT_TRUE(HoldsBytesOf(f.engine->PinById(header.id)->bytes(), "k", 9));
  const std::uint64_t both = f.engine->Stats().used_bytes;
  pin.reset();
  EXPECT_LT(f.engine->Stats().used_bytes, both);
}

TEST(CacheEngine, OverwritesFreedMemorySoThatALateReaderSeesIt) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const BlockHeader header = MakeHeader(MakeNamespace(), "k", 5000);
  ASSERT_TRUE(f.Put(header).ok());
  const ByteSpan stale = f.engine->PinById(header.id)->bytes();
  f.engine->Delete(header.id);
#ifdef KVF_DCHECKS
  EXPECT_EQ(stale[0], std::byte{0xDB});
  EXPECT_EQ(stale[4999], std::byte{0xDB});
#else
  EXPECT_FALSE(f.Has(header));
  EXPECT_EQ(stale.size(), 5000U);
#endif
}

TEST(CacheEngine, ClearsAllButWhatIsPinned) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  ASSERT_TRUE(f.PutChain(ns, "c", 10, 3000).ok());
  const auto pin = f.engine->PinById(ChainHeader(ns, "c", 4, 0).id);
  f.engine->Clear();
  EXPECT_EQ(f.engine->Stats().blocks, 1U);
  EXPECT_TRUE(f.Has(ChainHeader(ns, "c", 4, 0)));
}

TEST(CacheEngine, LeavesPinnedBytesReadableWhenThePoolGoes) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const BlockHeader header = MakeHeader(MakeNamespace(), "k", 5000);
  ASSERT_TRUE(f.Put(header).ok());
  std::optional<PinnedBlock> pin = f.engine->PinById(header.id);
  Reservation late =
      f.engine->Reserve(MakeHeader(header.ns, "late", 100), BlockOrigin::kPut).value();
  f.engine.reset();
  EXPECT_TRUE(HoldsBytesOf(pin->bytes(), "k", 0));
  EXPECT_EQ(std::move(late).Commit(1).status().code(), StatusCode::kUnavailable);
  pin.reset();
  EXPECT_EQ(f.arena->stats().slot_bytes, 0U);
}

TEST(CacheEngine, SnapshotsCommittedBlocksOfTheSlotsAskedFor) {
  EngineFixture f(PoolOptions(4 * kMiB));
  const NamespaceRef ns = MakeNamespace();
  for (std::uint32_t i = 0; i < 6; ++i) {
    BlockHeader header = MakeHeader(ns, "k" + std::to_string(i), 500);
    header.slot = i % 3;
    ASSERT_TRUE(f.Put(header).ok());
  }
  const BlockHeader fetched = MakeHeader(ns, "fetched", 500);
  const PinnedBlock pin = PutBlock(*f.engine, fetched, BlockOrigin::kTransient).value();
  EXPECT_EQ(f.engine->Snapshot({}).size(), 6U);
  EXPECT_EQ(f.engine->Snapshot({0, 2}).size(), 4U);
  EXPECT_EQ(f.engine->Snapshot({9}).size(), 0U);
}

TEST(CacheEngine, RefusesOptionsThatCannotWork) {
  FakeClock clock;
  auto arena = DramArena::Create({.bytes = 4 * kMiB, .clock = &clock}).value();
  const CacheEngine::Environment environment{.arena = arena.get(), .clock = &clock};
  CacheEngine::Options options = PoolOptions(kMiB);
  EXPECT_TRUE(CacheEngine::Create(options, environment).ok());
  EXPECT_EQ(CacheEngine::Create(options, {}).status().code(), StatusCode::kInvalidArgument);
  options.low_watermark_percent = 95;
  EXPECT_EQ(CacheEngine::Create(options, environment).status().code(),
            StatusCode::kInvalidArgument);
  options = PoolOptions(0);
  EXPECT_EQ(CacheEngine::Create(options, environment).status().code(),
            StatusCode::kInvalidArgument);
  options = PoolOptions(kMiB);
  options.eviction_policy = "FIFO";
  EXPECT_FALSE(CacheEngine::Create(options, environment).ok());
}

TEST(CacheEngine, HoldsIndexMemoryToAboutThreeHundredBytesABlock) {
  CacheEngine::Options options = PoolOptions(64 * kMiB);
  options.max_blocks = 40'000;
  EngineFixture f(options);
  const NamespaceRef ns = MakeNamespace();
  for (std::uint32_t chain = 0; chain < 400; ++chain) {
    ASSERT_TRUE(f.PutChain(ns, "c" + std::to_string(chain), 100, 256).ok());
  }
  ASSERT_EQ(f.engine->Stats().blocks, 40'000U);
  EXPECT_LT(f.engine->Stats().index_bytes / 40'000, 330U);
  EXPECT_LT(f.engine->Stats().index_bytes, CacheEngine::MostIndexBytes(64 * kMiB, 40'000));
}

TEST(CacheEngine, GivesTheProbeRoomWhenThePoolsAreFull) {
  EngineFixture f(PoolOptions(2 * kMiB), 2 * kMiB);
  const NamespaceRef ns = MakeNamespace();
  std::vector<PinnedBlock> pins;
  for (int i = 0; i < 2; ++i) {
    pins.push_back(PutBlock(*f.engine, MakeHeader(ns, std::to_string(i), kMiB)).value());
  }
  CacheEngine::Options options = PoolOptions(kMiB);
  options.pool_uid = "probe";
  auto probe = f.MakeEngine(options);
  const NamespaceRef probe_ns = MakeNamespace(kProbeTenant, NamespaceKind::kSingle, "probe");
  for (int i = 0; i < 100; ++i) {
    const BlockHeader header = MakeHeader(probe_ns, "probe" + std::to_string(i), 64'000);
    ASSERT_TRUE(PutBlock(*probe, header).ok());
    EXPECT_TRUE(HoldsBytesOf(probe->PinById(header.id)->bytes(), header.key, 0));
    probe->Delete(header.id);
  }
}

}  // namespace
}  // namespace kvfabric
