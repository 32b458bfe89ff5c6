// The directory against the truth: lost, late and repeated announcements, changes of owners.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "tests/cluster/cluster_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

// What owners know of `node`'s blocks, and what is so. Empty = all agree.
std::string Disagreement(TestCluster& cluster, const std::vector<std::string>& nodes) {
  std::map<std::string, std::set<KeyId>> truth;
  for (const std::string& node : nodes) {
    for (const BlockHeader& block : cluster.node(node).pool()->engine().Snapshot({})) {
      truth[node].insert(block.id);
    }
  }
  for (const std::string& owner : nodes) {
    PoolNode& pool = *cluster.node(owner).pool();
    const SharedRouting routing = pool.routing();
    std::size_t expected = 0;
    for (const std::string& holder : nodes) {
      const NodeIndex number = pool.context().names->Find(holder);
      std::set<KeyId> known;
      for (const auto& entry : pool.directory().EntriesOf(number, 1U << 20U)) {
        if (routing->Owns(routing->self(), entry.slot)) known.insert(entry.id);
      }
      std::set<KeyId> held;
      for (const BlockHeader& block : cluster.node(holder).pool()->engine().Snapshot({})) {
        if (routing->Owns(routing->self(), block.slot)) held.insert(block.id);
      }
      expected += held.size();
      if (known != held) {
        return owner + " knows " + std::to_string(known.size()) + " blocks of " + holder +
               ", it has " + std::to_string(held.size());
      }
    }
    if (expected == 0) return owner + " owns nothing";
  }
  return {};
}

TEST(Directory, EqualsTheTruthAfterLostLateAndRepeatedAnnouncements) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::string> nodes{"a", "b", "c"};
  // Small tiers: puts evict all the time.
  TestCluster cluster({.nodes = nodes, .capacity_bytes = 2U << 20U});
  std::mutex mu;
  std::mt19937_64 faults(random());
  std::atomic<bool> disturb{true};
  cluster.network().SetAnnounceFault([&] {
    const std::lock_guard<std::mutex> lock(mu);
    if (!disturb || faults() % 3 != 0) return AnnounceFault::kNone;
    return static_cast<AnnounceFault>(1 + faults() % 4);
  });
  for (int step = 0; step < 120; ++step) {
    const std::string& node = nodes[random() % 3];
    const std::string chain = "chain" + std::to_string(random() % 40);
    const std::size_t length = 1 + random() % 20;
    switch (random() % 8) {
      case 0: {
        Waiter<std::uint32_t> waiter;
        cluster.fabric(node).Delete(
            cluster.session(node), {cluster.ns(node), Lane{}, ChainRange(chain, 0, length), 0},
            Deadline::After(Clock::System(), std::chrono::milliseconds(200)), waiter.done());
        EXPECT_TRUE(waiter.Wait().ok());
        break;
      }
      case 1:
        cluster.Read(node, ChainRange(chain, 0, length));
        break;
      case 2:
        if (step % 5 == 0) {
          std::vector<std::string> order = nodes;
          std::shuffle(order.begin(), order.end(), random);
          cluster.ApplyMap(cluster.MakeMap(order));
        }
        break;
      default:
        cluster.Put(node, ChainRange(chain, 0, length));
    }
  }
  disturb = false;
  std::string difference;
  EXPECT_TRUE(Eventually(
      [&] {
        if (!cluster.Settle()) {
          difference = "not settled";
          return false;
        }
        difference = Disagreement(cluster, nodes);
        return difference.empty();
      },
      std::chrono::seconds(10)))
      << difference;
  double resyncs = 0;
  for (const std::string& node : nodes)
    resyncs += cluster.node(node).pool()->metrics().snapshots.Value();
  EXPECT_GT(resyncs, 0);
}

TEST(HandOver, AsksThePreviousOwnerWhatTheNewOneCannotKnowYet) {
  TestCluster cluster({.nodes = {"a", "b", "c", "d"}});
  cluster.Put("b", ChainRange("p", 0, 64));
  ASSERT_TRUE(cluster.Settle());
  // From now on no announcement arrives: new owners stay ignorant.
  cluster.network().SetAnnounceFault([] { return AnnounceFault::kLoseRequest; });
  cluster.ApplyMap(cluster.MakeMap({"c", "d", "a", "b"}));
  double asked = 0;
  for (const std::string node : {"a", "c", "d"}) {
    EXPECT_EQ(cluster.Read(node, ChainRange("p", 0, 64)), 64U) << node;
  }
  for (const std::string node : {"a", "b", "c", "d"}) {
    asked += cluster.node(node).pool()->metrics().handovers.Value();
  }
  EXPECT_GT(asked, 0);
}

TEST(HandOver, RetriesWithTheNewMapWhenAnOwnerSaysStale) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 64));
  ASSERT_TRUE(cluster.Settle());
  cluster.network().SetAnnounceFault([] { return AnnounceFault::kLoseRequest; });
  const ShardMap map = cluster.MakeMap({"b", "c", "a"});
  cluster.ApplyMap(map, {"a", "c"});  // b does not hear of it
  EXPECT_EQ(cluster.Read("b", ChainRange("p", 0, 64)), 64U);
  EXPECT_EQ(cluster.fabric("b").map_epoch("pool-uid"), map.epoch);
  EXPECT_GT(cluster.node("b").pool()->metrics().stale_epochs.Value(), 0);
}

TEST(Directory, IsCorrectedByARefusedLease) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 8));
  ASSERT_TRUE(cluster.Settle());
  // The removal never arrives; it is lost for good, as if the owner had missed it.
  PoolNode& a = *cluster.node("a").pool();
  const std::vector<BlockHeader> blocks = a.engine().Snapshot({});
  a.engine().SetObserver(nullptr);
  for (const BlockHeader& block : blocks) a.engine().Delete(block.id);
  a.engine().SetObserver(&a.announcer());
  EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 8))->hits, 0U);
  EXPECT_TRUE(Eventually([&] {
    std::size_t entries = 0;
    for (const std::string node : {"a", "b", "c"}) {
      PoolNode& pool = *cluster.node(node).pool();
      entries += pool.directory().EntriesOf(pool.context().names->Find("a"), 100).size();
    }
    // One look-up asks for what stands before the first gap, so it takes a few.
    EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 8))->hits, 0U);
    return entries == 0;
  }));
}

TEST(Directory, KeepsABlockThatCameInBeforeItsCorrectionWasSent) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 8));
  ASSERT_TRUE(cluster.Settle());
  PoolNode& a = *cluster.node("a").pool();
  // As a lease that missed them a moment before the put.
  std::vector<KeyId> ids;
  for (const BlockHeader& block : a.engine().Snapshot({})) ids.push_back(block.id);
  a.announcer().Correct(ids);
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 8))->hits, 8U);
  EXPECT_EQ(cluster.Lookup("c", ChainRange("p", 0, 8))->hits, 8U);
}

TEST(Announcements, MarkOneCopyWhenTwoWerePutAtOnce) {
  TestCluster cluster({.nodes = {"a", "b"}});
  ASSERT_TRUE(cluster.Settle());
  // Each node hears of its own put first: neither owner knows the other's order.
  std::atomic<bool> hold{true};
  cluster.network().SetAnnounceFault(
      [&hold] { return hold ? AnnounceFault::kLoseRequest : AnnounceFault::kNone; });
  cluster.Put("a", ChainRange("p", 0, 40));
  cluster.Put("b", ChainRange("p", 0, 40));
  const auto known_at_home = [&](const std::string& node) {
    PoolNode& pool = *cluster.node(node).pool();
    return pool.directory().EntriesOf(pool.context().self.node, 100).size();
  };
  ASSERT_TRUE(Eventually([&] { return known_at_home("a") == 40 && known_at_home("b") == 40; }));
  hold = false;
  std::map<KeyId, std::size_t> marks;
  const auto all_marked_once = [&] {
    marks.clear();
    for (const std::string node : {"a", "b"}) {
      for (const BlockHeader& block : cluster.node(node).pool()->engine().Snapshot({})) {
        marks[block.id] += block.has_other_holder ? 1 : 0;
      }
    }
    return std::ranges::all_of(marks, [](const auto& mark) { return mark.second == 1; });
  };
  ASSERT_TRUE(cluster.Settle());
  EXPECT_TRUE(Eventually(all_marked_once));
  EXPECT_EQ(marks.size(), 40U);
}

TEST(Announcements, MarkTheLaterCopy) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 4));
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("b", ChainRange("p", 0, 4), "recomputed");
  ASSERT_TRUE(cluster.Settle());
  const auto marked = [&](const std::string& node) {
    CacheEngine& engine = cluster.node(node).pool()->engine();
    std::size_t count = 0;
    for (const BlockHeader& block : engine.Snapshot({})) {
      count += engine.PinById(block.id)->header().has_other_holder ? 1 : 0;
    }
    return count;
  };
  EXPECT_TRUE(Eventually([&] { return marked("b") == 4; }));
  EXPECT_EQ(marked("a"), 0U);
}

}  // namespace
}  // namespace kvfabric
