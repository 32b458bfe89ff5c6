// The engine against a naive map: random puts, reads, deletes, evictions, leases, session losses,
// spills, quotas, capacity changes. The map learns what leaves from the observer only; everything
// else it knows. Seeds are printed; KVF_TEST_SEED repeats a run.

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "agent/engine/lease_table.h"
#include "tests/engine/engine_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kCapacity = 2 * kMiB;
constexpr std::uint64_t kQuota = kMiB / 2;

// What is here, by what the engine says.
class Presence final : public BlockObserver {
 public:
  void OnCommitted(const BlockHeader& header, BlockOrigin origin) override {
    EXPECT_TRUE(here.emplace(header.id, header.key).second) << "told twice of " << header.key;
    EXPECT_EQ(origin == BlockOrigin::kTransient, expect_kept);
  }
  void OnRemoved(const BlockHeader& header) override {
    EXPECT_EQ(here.erase(header.id), 1U) << "gone before it came: " << header.key;
  }
  std::map<KeyId, std::string> here;
  bool expect_kept = false;
};

class Model final : public SpillTarget {
 public:
  Model(std::uint64_t seed, std::uint64_t arena_bytes)
      : random_(seed), f_(Options(), arena_bytes), leases_(f_.clock) {
    f_.engine->SetObserver(&presence_);
    f_.engine->SetSpillTarget(this);
    leases_.SetPoolBytes("pool", kCapacity);
    for (const char* tenant : {"a", "b", "limited"}) namespaces_.push_back(MakeNamespace(tenant));
  }

  void Step() {
    f_.clock.Advance(std::chrono::microseconds(random_() % 2000));
    static constexpr void (Model::*kOperations[])() = {
        &Model::Put,      &Model::Put,    &Model::Put,     &Model::Put,        &Model::Read,
        &Model::Read,     &Model::Touch,  &Model::Lease,   &Model::ReadLeased, &Model::ReadLeased,
        &Model::EndLease, &Model::Delete, &Model::Abandon, &Model::Fetch,      &Model::Flag,
        &Model::EndSpill, &Model::Evict,  &Model::Evict,   &Model::Rarely,
    };
    (this->*kOperations[random_() % std::size(kOperations)])();
    CheckLimits();
  }

  void Finish() {
    leased_.clear();
    for (const auto session : sessions_) leases_.CloseSession(session);
    do {
      f_.background.RunAll();
      spilled_.clear();
    } while (f_.background.pending() > 0);
    CheckPresence();
    f_.engine->Clear();
    const EngineStats stats = f_.engine->Stats();
    EXPECT_EQ(stats.blocks, 0U);
    EXPECT_EQ(stats.used_bytes, 0U);
    EXPECT_EQ(stats.pinned_bytes, 0U);
    EXPECT_EQ(stats.transient_bytes, 0U);
    EXPECT_EQ(stats.pending_spill_bytes, 0U);
    EXPECT_EQ(f_.arena->stats().slot_bytes, 0U);
    EXPECT_EQ(leases_.stats().leases, 0U);
    EXPECT_TRUE(presence_.here.empty());
    EXPECT_GT(stats.puts, 500U);
    EXPECT_GT(stats.evicted, 100U);
  }

  std::uint64_t spilled() const { return f_.engine->Stats().spilled; }

  void CheckPresence() {
    for (const auto& [id, key] : presence_.here) EXPECT_TRUE(f_.engine->Contains(id)) << key;
    EXPECT_EQ(f_.engine->Snapshot({}).size(), presence_.here.size());
  }

  bool Take(PinnedBlock block) override {
    EXPECT_FALSE(block.header().has_other_holder || block.header().spilled_in);
    if (random_() % 4 == 0) return false;
    spilled_.push_back(std::move(block));
    return true;
  }

 private:
  struct Leased {
    LeaseTable::SessionId session = 0;
    LeaseTable::LeaseId lease = 0;
    KeyId id;
    std::string key;
    std::uint64_t version = 0;
    Clock::TimePoint ends;
  };

  static CacheEngine::Options Options() {
    CacheEngine::Options options = PoolOptions(kCapacity);
    options.quotas = {{.tenant = "limited", .dram_bytes = kQuota}};
    return options;
  }

  BlockHeader RandomHeader() {
    const NamespaceRef& ns = namespaces_[random_() % namespaces_.size()];
    static constexpr std::uint64_t kLengths[] = {700, 4096, 4096, 20'000, 100'000};
    const std::string chain = std::to_string(random_() % 60);
    const auto depth = static_cast<std::uint32_t>(random_() % 8);
    const Lane lane{.group = 0, .rank = static_cast<std::uint16_t>(random_() % 2)};
    return ChainHeader(ns, chain, depth, kLengths[random_() % 5], lane);
  }

  // What a read must give: the version that was put last, if the block is here.
  void Expect(const BlockHeader& header, const std::optional<PinnedBlock>& block) {
    const bool here = presence_.here.contains(header.id);
    ASSERT_EQ(block.has_value(), here || transient_.contains(header.id)) << header.key;
    ASSERT_EQ(f_.engine->Contains(header.id), block.has_value());
    if (!block.has_value()) return;
    ASSERT_TRUE(HoldsBytesOf(block->bytes(), header.key, versions_.at(header.id))) << header.key;
    ASSERT_EQ(block->checksum(), BlockChecksum(block->bytes()));
    ASSERT_EQ(block->header().key, header.key);
  }

  void Put() {
    const BlockHeader header = RandomHeader();
    const bool present = f_.engine->Contains(header.id);
    const std::uint64_t version = ++next_version_;
    static constexpr BlockOrigin kOrigins[] = {BlockOrigin::kPut, BlockOrigin::kPut,
                                               BlockOrigin::kReplica, BlockOrigin::kSpill};
    const auto put = PutBlock(*f_.engine, header, kOrigins[random_() % 4], version);
    if (present) {
      ASSERT_EQ(put.status().code(), StatusCode::kAlreadyExists);
      return;
    }
    ASSERT_TRUE(put.ok() || put.status().code() == StatusCode::kResourceExhausted)
        << put.status().ToString();
    if (!put.ok()) return;
    versions_[header.id] = version;
    Expect(header, f_.engine->Pin(header.id, header.key, header.lane));
  }

  void Abandon() {
    const BlockHeader header = RandomHeader();
    const bool present = f_.engine->Contains(header.id);
    auto reservation = f_.engine->Reserve(header, BlockOrigin::kPut);
    if (reservation.ok()) Fill(reservation->bytes(), "garbage", 0);
    ASSERT_TRUE(present == f_.engine->Contains(header.id) || present);
  }

  void Read() {
    const BlockHeader header = RandomHeader();
    Expect(header, f_.engine->Pin(header.id, header.key, header.lane));
  }

  void Touch() { f_.engine->Touch({RandomHeader().id, RandomHeader().id, RandomHeader().id}); }

  // A block fetched from a peer: read, and kept or not.
  void Fetch() {
    const BlockHeader header = RandomHeader();
    const std::uint64_t version = ++next_version_;
    if (f_.engine->Contains(header.id)) return;
    auto fetched = PutBlock(*f_.engine, header, BlockOrigin::kTransient, version);
    if (!fetched.ok()) return;
    versions_[header.id] = version;
    transient_[header.id] = header.key;
    Expect(header, f_.engine->Pin(header.id, header.key, header.lane));
    if (random_() % 2 == 0) {
      presence_.expect_kept = true;
      ASSERT_TRUE(f_.engine->Keep(header.id));
      presence_.expect_kept = false;
    }
    transient_.erase(header.id);
    fetched = NotFound("dropped");
    Expect(header, f_.engine->Pin(header.id, header.key, header.lane));
  }

  void Lease() {
    if (sessions_.size() < 5) sessions_.push_back(leases_.OpenSession());
    const auto session = sessions_[random_() % sessions_.size()];
    const BlockHeader header = RandomHeader();
    auto block = f_.engine->Pin(header.id, header.key, header.lane);
    if (!block.has_value()) return;
    std::vector<PinnedBlock> blocks;
    blocks.push_back(std::move(*block));
    const auto lease = leases_.Grant(session, std::move(blocks));
    if (!lease.has_value()) return;
    leased_.push_back({.session = session,
                       .lease = *lease,
                       .id = header.id,
                       .key = header.key,
                       .version = versions_.at(header.id),
                       .ends = f_.clock.Now() + leases_.ttl()});
  }

  // A lease is kept whatever else happened to the block, and not a moment longer.
  void ReadLeased() {
    if (leased_.empty()) return;
    Leased& leased = leased_[random_() % leased_.size()];
    const auto block = leases_.Find(leased.session, leased.lease, leased.id);
    ASSERT_EQ(block.has_value(), leased.ends > f_.clock.Now());
    if (!block.has_value()) return;
    ASSERT_TRUE(HoldsBytesOf(block->bytes(), leased.key, leased.version));
    if (random_() % 4 != 0) return;
    ASSERT_TRUE(leases_.Renew(leased.session, leased.lease));
    leased.ends = f_.clock.Now() + leases_.ttl();
  }

  void EndLease() {
    if (leased_.empty()) return;
    const std::size_t at = random_() % leased_.size();
    const auto session = leased_[at].session;
    if (random_() % 8 == 0) {
      leases_.CloseSession(session);
      std::erase(sessions_, session);
      std::erase_if(leased_, [session](const Leased& l) { return l.session == session; });
      return;
    }
    leases_.Release(session, leased_[at].lease);
    leased_.erase(leased_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void Delete() {
    const BlockHeader header = RandomHeader();
    const bool present = f_.engine->Contains(header.id);
    ASSERT_EQ(f_.engine->Delete(header.id), present);
    ASSERT_FALSE(f_.engine->Pin(header.id, header.key, header.lane).has_value());
  }

  void Flag() { f_.engine->SetHasOtherHolder(RandomHeader().id, random_() % 2 == 0); }

  void EndSpill() {
    if (spilled_.empty()) return;
    const BlockHeader header = spilled_.front().header();
    ASSERT_TRUE(HoldsBytesOf(spilled_.front().bytes(), header.key, VersionIn(spilled_.front())));
    spilled_.pop_front();
  }

  // The version written in the block itself: key#VERSION;
  static std::uint64_t VersionIn(const PinnedBlock& block) {
    const std::string_view text = AsText(block.bytes());
    return std::stoull(std::string(text.substr(block.header().key.size() + 1, 20)));
  }

  void Evict() { f_.background.RunOne(); }

  void Rarely() {
    switch (random_() % 20) {
      case 0:
        f_.clock.Advance(leases_.ttl() / 2);
        leases_.ExpireNow();
        break;
      case 1: {
        CacheEngine::Options options = Options();
        options.capacity_bytes = kCapacity * (3 + random_() % 2) / 4;
        ASSERT_TRUE(f_.engine->Reconfigure(options).ok());
        f_.background.RunAll();
        break;
      }
      case 2:
        f_.arena->Reclaim("b");
        break;
      case 3:
        CheckPresence();
        break;
      default:
        break;
    }
  }

  void CheckLimits() {
    const EngineStats stats = f_.engine->Stats();
    ASSERT_LE(stats.used_bytes, kCapacity);
    ASSERT_LE(stats.transient_bytes, kCapacity / 10);
    ASSERT_LE(stats.pending_spill_bytes, kCapacity / 20);
    ASSERT_LE(f_.arena->stats().memfd_bytes, f_.arena->stats().cap_bytes);
    std::map<std::string, std::uint64_t> used;
    if (random_() % 50 != 0) return;
    for (const BlockHeader& header : f_.engine->Snapshot({})) {
      used[header.ns->tenant] += RoundUpToSlot(header.length_bytes);
    }
    ASSERT_LE(used["limited"], kQuota);
  }

  std::mt19937_64 random_;
  Presence presence_;
  std::deque<PinnedBlock> spilled_;
  EngineFixture f_;
  LeaseTable leases_;
  std::vector<NamespaceRef> namespaces_;
  std::map<KeyId, std::uint64_t> versions_;  // of the last put that succeeded
  std::map<KeyId, std::string> transient_;   // fetched and not kept
  std::vector<LeaseTable::SessionId> sessions_;
  std::vector<Leased> leased_;
  std::uint64_t next_version_ = 0;
};

TEST(EngineModel, AgreesWithANaiveMap) {
  Model model(TestSeed(), 24 * kMiB);
  for (int step = 0; step < 20'000 && !::testing::Test::HasFatalFailure(); ++step) model.Step();
  model.Finish();
  EXPECT_GT(model.spilled(), 10U);
}

// More slot sizes and tenants than memfds: memory moves between them all the time.
TEST(EngineModel, AgreesWithANaiveMapWhenMemoryIsShort) {
  Model model(TestSeed(), 6 * kMiB);
  for (int step = 0; step < 20'000 && !::testing::Test::HasFatalFailure(); ++step) model.Step();
  model.Finish();
}

}  // namespace
}  // namespace kvfabric
