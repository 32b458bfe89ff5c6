// Many threads on one engine, a real eviction pool and peers that take blocks: every read is whole
// and of the right key, what the observer hears stays in order, and all of it ends at zero.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/engine/lease_table.h"
#include "common/executor.h"
#include "tests/engine/engine_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kCapacity = 2 * kMiB;

class OrderedObserver final : public BlockObserver {
 public:
  void OnCommitted(const BlockHeader& header, BlockOrigin) override {
    MutexLock lock(mu_);
    if (!here_.emplace(header.id, true).second) ++faults;
  }
  void OnRemoved(const BlockHeader& header) override {
    MutexLock lock(mu_);
    if (here_.erase(header.id) != 1) ++faults;
  }
  std::size_t count() {
    MutexLock lock(mu_);
    return here_.size();
  }
  std::atomic<int> faults{0};

 private:
  Mutex mu_;
  std::map<KeyId, bool> here_ GUARDED_BY(mu_);
};

// Holds a few blocks and drops the oldest, on whatever thread.
class BriefPeers final : public SpillTarget {
 public:
  bool Take(PinnedBlock block) override {
    const std::string key = block.header().key;
    if (AsText(block.bytes()).substr(0, key.size()) != key) ++faults;
    std::vector<PinnedBlock> dropped;
    MutexLock lock(mu_);
    held_.push_back(std::move(block));
    if (held_.size() > 5) dropped.swap(held_);
    return true;
  }
  void Drop() {
    std::vector<PinnedBlock> dropped;
    MutexLock lock(mu_);
    dropped.swap(held_);
  }
  std::atomic<int> faults{0};

 private:
  Mutex mu_;
  std::vector<PinnedBlock> held_ GUARDED_BY(mu_);
};

struct Shared {
  const std::vector<NamespaceRef> namespaces = {MakeNamespace("a"), MakeNamespace("b")};
  FakeClock clock;
  WorkerPool background{"evict", 2, 100};
  OrderedObserver observer;
  BriefPeers peers;
  std::unique_ptr<DramArena> arena =
      DramArena::Create({.bytes = kCapacity * 5 / 4 + 2 * kMiB, .clock = &clock}).value();
  std::unique_ptr<CacheEngine> engine;
  std::unique_ptr<LeaseTable> leases = std::make_unique<LeaseTable>(clock);
  std::atomic<int> wrong_bytes{0};
  std::atomic<int> lost_leases{0};

  // Whole, of that key, of one version, and as the checksum says.
  void Verify(const PinnedBlock& block, const std::string& key) {
    const std::string_view text = AsText(block.bytes());
    const std::string_view version = text.substr(key.size() + 1, 20);
    const bool right = text.substr(0, key.size()) == key &&
                       HoldsBytesOf(block.bytes(), key, std::stoull(std::string(version))) &&
                       BlockChecksum(block.bytes()) == block.checksum();
    if (!right) ++wrong_bytes;
  }
};

class Client {
 public:
  Client(Shared& shared, std::uint64_t seed) : s_(shared), random_(seed) {
    session_ = s_.leases->OpenSession();
  }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      s_.clock.Advance(std::chrono::microseconds(3));
      const NamespaceRef& ns = s_.namespaces[random_() % 2];
      const BlockHeader header = ChainHeader(
          ns, std::to_string(random_() % 20), static_cast<std::uint32_t>(random_() % 6),
          2000 + 1000 * (random_() % 20), {.group = 0, .rank = std::uint16_t(random_() % 2)});
      Do(header);
    }
    if (random_() % 2 == 0) s_.leases->CloseSession(session_);  // the others expire
  }

 private:
  void Do(const BlockHeader& header) {
    switch (random_() % 12) {
      case 0:
        s_.engine->Delete(header.id);
        break;
      case 1:
        s_.engine->Touch({header.id, header.parent});
        break;
      case 2:
        s_.engine->SetHasOtherHolder(header.id, random_() % 2 == 0);
        break;
      case 3: {
        auto fetched = PutBlock(*s_.engine, header, BlockOrigin::kTransient, random_() % 1000);
        if (fetched.ok()) s_.Verify(*fetched, header.key);
        if (fetched.ok() && random_() % 2 == 0) s_.engine->Keep(header.id);
        break;
      }
      case 4:
        LeaseAndRead(header);
        break;
      case 5:
        s_.leases->ExpireNow();
        s_.engine->ColdestAge();
        break;
      case 6:
        if (auto reserved = s_.engine->Reserve(header, BlockOrigin::kPut); reserved.ok()) {
          Fill(reserved->bytes(), "garbage", 0);
        }
        break;
      case 7:
        s_.arena->Reclaim(header.ns->tenant);
        break;
      case 8:
      case 9:
        if (auto block = s_.engine->Pin(header.id, header.key, header.lane); block.has_value()) {
          s_.Verify(*block, header.key);
        }
        break;
      default:
        if (auto put = PutBlock(*s_.engine, header, BlockOrigin::kPut, random_() % 1000);
            put.ok()) {
          s_.Verify(*put, header.key);
        }
    }
  }

  void LeaseAndRead(const BlockHeader& header) {
    auto block = s_.engine->Pin(header.id, header.key, header.lane);
    if (!block.has_value()) return;
    std::vector<PinnedBlock> blocks;
    blocks.push_back(std::move(*block));
    const auto lease = s_.leases->Grant(session_, std::move(blocks));
    if (!lease.has_value()) return;
    s_.engine->Delete(header.id);
    const auto found = s_.leases->Find(session_, *lease, header.id);
    if (!found.has_value()) {
      ++s_.lost_leases;
    } else {
      s_.Verify(*found, header.key);
    }
    if (random_() % 4 != 0) s_.leases->Release(session_, *lease);
  }

  Shared& s_;
  std::mt19937_64 random_;
  LeaseTable::SessionId session_ = 0;
};

TEST(EngineThreads, ReadOnlyWholeBlocksAndEndAtZero) {
  const std::uint64_t seed = TestSeed();
  Shared s;
  CacheEngine::Options options = PoolOptions(kCapacity);
  options.quotas = {{.tenant = "b", .dram_bytes = kCapacity / 3}};
  s.engine = CacheEngine::Create(options, {.arena = s.arena.get(),
                                           .clock = &s.clock,
                                           .background = &s.background,
                                           .metrics = nullptr})
                 .value();
  s.engine->SetObserver(&s.observer);
  s.engine->SetSpillTarget(&s.peers);
  s.leases->SetPoolBytes("pool", kCapacity);
  std::vector<std::thread> threads;
  std::atomic<bool> over_limit{false};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&s, &over_limit, seed, t] {
      Client client(s, seed + t);
      for (int round = 0; round < 10; ++round) {
        client.Run(200);
        if (s.engine->Stats().used_bytes > kCapacity) over_limit = true;
        if (s.arena->stats().memfd_bytes > s.arena->stats().cap_bytes) over_limit = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  s.background.Shutdown();
  s.peers.Drop();
  s.clock.Advance(s.leases->ttl());
  s.leases->ExpireNow();
  EXPECT_EQ(s.wrong_bytes, 0);
  EXPECT_EQ(s.lost_leases, 0);
  EXPECT_EQ(s.observer.faults, 0);
  EXPECT_EQ(s.peers.faults, 0);
  EXPECT_FALSE(over_limit);
  EXPECT_EQ(s.leases->stats().leases, 0U);
  EXPECT_EQ(s.engine->Snapshot({}).size(), s.observer.count());
  EXPECT_EQ(s.engine->Stats().pinned_bytes, 0U);
  EXPECT_EQ(s.engine->Stats().transient_bytes, 0U);
  EXPECT_EQ(s.engine->Stats().pending_spill_bytes, 0U);
  s.engine->Clear();
  EXPECT_EQ(s.engine->Stats().used_bytes, 0U);
  EXPECT_EQ(s.arena->stats().slot_bytes, 0U);
  EXPECT_EQ(s.observer.count(), 0U);
}

// Writers of one key: exactly one wins each time, and readers see nothing or one whole version.
TEST(EngineThreads, LetOneWriterOfAKeyWin) {
  Shared s;
  s.engine = CacheEngine::Create(PoolOptions(kCapacity), {.arena = s.arena.get(),
                                                          .clock = &s.clock,
                                                          .background = &s.background,
                                                          .metrics = nullptr})
                 .value();
  std::atomic<int> wins{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&s, &wins, t] {
      for (int i = 0; i < 200; ++i) {
        const BlockHeader header = MakeHeader(s.namespaces[0], "k" + std::to_string(i), 3000);
        if (PutBlock(*s.engine, header, BlockOrigin::kPut, t).ok()) ++wins;
        s.Verify(*s.engine->PinById(header.id), header.key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wins, 200);
  EXPECT_EQ(s.wrong_bytes, 0);
}

}  // namespace
}  // namespace kvfabric
