// Bytes that move by themselves: spill, replicas, repair after a loss, drain, spread.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "tests/cluster/cluster_fixture.h"

namespace kvfabric {
namespace {

std::size_t BlocksAt(TestCluster& cluster, const std::string& node) {
  return cluster.node(node).pool()->engine().Snapshot({}).size();
}

// Nodes that hold each block.
std::map<KeyId, std::set<std::string>> Holders(TestCluster& cluster,
                                               const std::vector<std::string>& nodes) {
  std::map<KeyId, std::set<std::string>> holders;
  for (const std::string& node : nodes) {
    for (const BlockHeader& block : cluster.node(node).pool()->engine().Snapshot({})) {
      holders[block.id].insert(node);
    }
  }
  return holders;
}

// Puts `chains` chains of `length` at one node, waiting for its spill queue in between.
void PutSlowly(TestCluster& cluster, const std::string& node, int chains, std::size_t length) {
  for (int chain = 0; chain < chains; ++chain) {
    cluster.Put(node, ChainRange("c" + std::to_string(chain), 0, length));
    EXPECT_TRUE(Eventually([&] {
      const EngineStats stats = cluster.node(node).pool()->engine().Stats();
      return stats.pending_spill_bytes == 0 && stats.used_bytes <= stats.capacity_bytes / 100 * 90;
    }));
  }
}

TEST(Spill, MakesTheNodesOnePoolWhenAllRequestsComeToOne) {
  // 3 x 512 blocks; 1200 come in at one node.
  TestCluster cluster({.nodes = {"a", "b", "c"}, .capacity_bytes = 512 * kTestBlockBytes});
  ASSERT_TRUE(cluster.Settle());
  const auto settled = std::chrono::steady_clock::now();
  ASSERT_TRUE(Eventually([&] {  // until keepalives tell who has room
    return std::chrono::steady_clock::now() - settled > std::chrono::milliseconds(700);
  }));
  PutSlowly(cluster, "a", 240, 5);
  ASSERT_TRUE(cluster.Settle());
  std::size_t hits = 0;
  for (int chain = 0; chain < 240; ++chain) {
    const auto found = cluster.Lookup("a", ChainRange("c" + std::to_string(chain), 0, 5));
    hits += found->hits;
    cluster.Release("a", found->lease_id);
  }
  // What a busy machine did not hand over by its deadline was dropped and counted; nothing else
  // may be missing.
  const PoolMetrics& metrics = cluster.node("a").pool()->metrics();
  const auto dropped = static_cast<std::size_t>(metrics.spill_dropped.Value());
  EXPECT_GE(hits + dropped, 1140U)
      << "hits " << hits << ", offered " << metrics.spill_offered.Value() << ", spilled "
      << metrics.spilled.Value() << ", dropped " << dropped << ", evicted "
      << cluster.node("a").pool()->engine().Stats().evicted;
  EXPECT_GT(hits, 600U);  // alone the node holds 460
  EXPECT_GT(BlocksAt(cluster, "b"), 100U);
  EXPECT_GT(BlocksAt(cluster, "c"), 100U);
  for (const BlockHeader& block : cluster.node("b").pool()->engine().Snapshot({})) {
    EXPECT_TRUE(block.spilled_in);
    // The owner may list the giver still when it hears of the taker; it is the only copy all the
    // same, and a copy of another's would be evicted before colder blocks.
    EXPECT_FALSE(block.has_other_holder);
  }
}

TEST(Spill, GoesOnceAndToTheColdest) {
  TestCluster cluster({.nodes = {"a", "b", "c"}, .capacity_bytes = 64 * kTestBlockBytes});
  ASSERT_TRUE(cluster.Settle());
  // b is full of old blocks, c of new ones.
  cluster.Put("b", ChainRange("old", 0, 57));  // up to the watermark: no room
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(Eventually(
      [&] { return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(700); }));
  PutSlowly(cluster, "a", 11, 5);
  cluster.Put("c", ChainRange("new", 0, 57));
  const auto filled = std::chrono::steady_clock::now();
  ASSERT_TRUE(Eventually([&] {  // until keepalives tell
    return std::chrono::steady_clock::now() - filled > std::chrono::milliseconds(400);
  }));
  for (int chain = 20; chain < 25; ++chain) {
    cluster.Put("a", ChainRange("c" + std::to_string(chain), 0, 5));
    ASSERT_TRUE(Eventually(
        [&] { return cluster.node("a").pool()->engine().Stats().pending_spill_bytes == 0; }));
  }
  const auto spilled_in = [&](const std::string& node) {
    std::size_t count = 0;
    for (const BlockHeader& block : cluster.node(node).pool()->engine().Snapshot({})) {
      count += block.spilled_in ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(spilled_in("b"), 0U);
  EXPECT_EQ(spilled_in("c"), 0U);
  // b must evict: its own leaves may go on, what was spilled to it must not.
  const double before = cluster.node("b").pool()->metrics().spill_offered.Value();
  PoolNode& b = *cluster.node("b").pool();
  for (const BlockHeader& block : b.engine().Snapshot({})) {
    if (!block.spilled_in) b.engine().Delete(block.id);
  }
  PutSlowly(cluster, "b", 0, 0);
  EXPECT_EQ(cluster.node("b").pool()->metrics().spill_offered.Value(), before);
}

TEST(Replicas, GoToOtherFailureDomains) {
  const std::vector<std::string> nodes{"a", "b", "c", "d"};
  const std::map<std::string, std::string> zones{{"a", "x"}, {"b", "x"}, {"c", "y"}, {"d", "y"}};
  TestCluster cluster({.nodes = nodes, .zones = zones, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  const PutAnswer put = cluster.Put("a", ChainRange("p", 0, 40));
  EXPECT_EQ(put.copies, std::vector<std::uint8_t>(40, 2));
  for (const auto& [id, holders] : Holders(cluster, nodes)) {
    ASSERT_EQ(holders.size(), 2U);
    EXPECT_TRUE(holders.contains("a"));
    // Owners are neighbours a-b, b-c, c-d, d-a: all but a-b have one in zone y.
    const std::string other = *std::ranges::find_if(holders, [](auto& h) { return h != "a"; });
    const auto slot = cluster.node("a").pool()->engine().PinById(id)->header().slot;
    EXPECT_EQ(zones.at(other), slot % 4 == 0 ? "x" : "y") << slot;
  }
}

TEST(Replicas, AreCountedByTheDeadlineAndOwedWhenNoOwnerIsThere) {
  TestCluster cluster({.nodes = {"a", "b"}, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("b");
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("a").peers().UpLinks().empty(); }));
  const PutAnswer put = cluster.Put("a", ChainRange("p", 0, 10));
  EXPECT_EQ(put.status, std::vector<PutStatus>(10, PutStatus::kOk));
  EXPECT_EQ(put.copies, std::vector<std::uint8_t>(10, 1));
  EXPECT_EQ(cluster.fabric("a").PoolReports()[0].under_replicated, 10U);
  // It comes back: what is owed is paid.
  cluster.Start("b");
  EXPECT_TRUE(Eventually([&] { return BlocksAt(cluster, "b") == 10; }, std::chrono::seconds(12)));
  EXPECT_TRUE(
      Eventually([&] { return cluster.fabric("a").PoolReports()[0].under_replicated == 0; }));
}

TEST(Replicas, AreNotOwedWhenNoneIsWantedAnyMore) {
  TestCluster cluster({.nodes = {"a", "b"}, .replicas = 2});
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("b");
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("a").peers().UpLinks().empty(); }));
  cluster.Put("a", ChainRange("p", 0, 10));
  const auto owed = [&] { return cluster.fabric("a").PoolReports()[0].under_replicated; };
  EXPECT_EQ(owed(), 10U);
  cluster.spec().replicas = 1;
  cluster.ApplyPools();
  EXPECT_TRUE(Eventually([&] { return owed() == 0; }, std::chrono::seconds(12)));
  EXPECT_EQ(cluster.node("a").pool()->metrics().replicas_failed.Value(), 10);
}

TEST(Replicas, ThatWaitForAStoppedPeerDoNotHoldUpTheEnd) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 150));
  ASSERT_TRUE(cluster.Settle());
  PoolNode& pool = *cluster.node("a").pool();
  const NodeIndex b = pool.context().names->Find("b");
  cluster.network().Stop("b");
  std::atomic<std::size_t> answered{0};
  for (const BlockHeader& block : pool.engine().Snapshot({})) {
    Replicator::Copy copy;
    copy.block = *pool.engine().PinById(block.id);
    copy.targets = {b};
    copy.done = [&answered](std::size_t stored) {
      EXPECT_EQ(stored, 0U);
      ++answered;
    };
    pool.replicator().Send(std::move(copy));
  }
  EXPECT_EQ(answered, 0U);
  std::thread closer([&pool] { pool.WaitIdle(); });
  EXPECT_TRUE(Eventually([&pool] { return !pool.gate().Enter(); }));
  cluster.Kill("b");
  closer.join();
  EXPECT_EQ(answered, 150U);
}

TEST(Replicas, AreMadeAnewWhenAMemberIsLost) {
  const std::vector<std::string> nodes{"a", "b", "c", "d"};
  TestCluster cluster({.nodes = nodes, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("a", ChainRange("p", 0, 60));
  cluster.Put("c", ChainRange("q", 0, 60));
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("a");
  cluster.ApplyMap(cluster.MakeMap(nodes, {{"a", MemberState::kLost}}));
  const std::vector<std::string> left{"b", "c", "d"};
  EXPECT_TRUE(Eventually(
      [&] {
        const auto holders = Holders(cluster, left);
        if (holders.size() < 120) return false;
        return std::ranges::all_of(holders, [](auto& entry) { return entry.second.size() >= 2; });
      },
      std::chrono::seconds(10)));
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Read("d", ChainRange("p", 0, 60)), 60U);
  for (const std::string& node : left) {
    EXPECT_EQ(cluster.fabric(node).PoolReports()[0].under_replicated, 0U) << node;
  }
}

TEST(Replicas, WaitForAnOwnerThatIsDownWhenAMemberIsLost) {
  const std::vector<std::string> nodes{"a", "b", "c"};
  TestCluster cluster({.nodes = nodes, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("c");
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("b").peers().UpLinks().size() == 1; }));
  cluster.Put("b", ChainRange("p", 0, 100));
  ASSERT_TRUE(cluster.Settle());
  // Those of slots that a and b own are at both; once a is lost, c is to have them.
  std::vector<KeyId> short_of_one;
  for (const BlockHeader& block : cluster.node("b").pool()->engine().Snapshot({})) {
    if (block.slot % 3 == 0) short_of_one.push_back(block.id);
  }
  ASSERT_FALSE(short_of_one.empty());
  cluster.Kill("a");
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("b").peers().UpLinks().empty(); }));
  cluster.ApplyMap(cluster.MakeMap(nodes, {{"a", MemberState::kLost}}));
  const auto lost = std::chrono::steady_clock::now();
  ASSERT_TRUE(Eventually([&] {  // until it has looked for targets a few times
    return std::chrono::steady_clock::now() - lost > std::chrono::milliseconds(500);
  }));
  EXPECT_GE(cluster.fabric("b").PoolReports()[0].under_replicated, short_of_one.size());
  cluster.Start("c");
  EXPECT_TRUE(Eventually([&] {
    CacheEngine& c = cluster.node("c").pool()->engine();
    return std::ranges::all_of(short_of_one, [&](const KeyId& id) { return c.Contains(id); });
  }));
  EXPECT_TRUE(Eventually([&] { return cluster.fabric("b").PoolReports()[0].under_replicated == 0; },
                         std::chrono::seconds(12)));
}

TEST(Replicas, OfOneKeyAreOneDeletedKey) {
  TestCluster cluster({.nodes = {"a", "b", "c", "d"}, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  for (const std::string node : {"a", "b", "c", "d"}) {
    cluster.Put("a", ChainRange("p", 0, 20));
    ASSERT_TRUE(cluster.Settle());
    Waiter<std::uint32_t> waiter;
    cluster.fabric(node).Delete(
        cluster.session(node), {cluster.ns(node), Lane{}, ChainRange("p", 0, 40), 0},
        Deadline::After(Clock::System(), std::chrono::seconds(5)), waiter.done());
    EXPECT_EQ(waiter.Wait().value(), 20U) << node;
    EXPECT_TRUE(Holders(cluster, {"a", "b", "c", "d"}).empty());
  }
}

TEST(Replicas, SurviveTheirWriter) {
  TestCluster cluster({.nodes = {"a", "b", "c"}, .replicas = 2, .acks_replicated = true});
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("a", ChainRange("p", 0, 60));
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("a");  // no new map: the operator is down
  EXPECT_TRUE(Eventually([&] { return cluster.Read("b", ChainRange("p", 0, 60)) == 60; },
                         std::chrono::milliseconds(2000)));
  EXPECT_EQ(cluster.Read("c", ChainRange("p", 0, 60)), 60U);
}

TEST(Spread, PutsBytesAtTheOwners) {
  const std::vector<std::string> nodes{"a", "b", "c"};
  TestCluster cluster({.nodes = nodes, .acks_replicated = true, .locality_spread = true});
  ASSERT_TRUE(cluster.Settle());
  for (std::uint32_t first = 0; first < 200; first += 20) {
    const PutAnswer put = cluster.Put("a", ChainRange("p", first, 20));
    EXPECT_EQ(put.copies, std::vector<std::uint8_t>(20, 1));
  }
  for (const std::string& node : nodes) {
    for (const BlockHeader& block : cluster.node(node).pool()->engine().Snapshot({})) {
      EXPECT_EQ(nodes[block.slot % 3], node);
    }
    EXPECT_GT(BlocksAt(cluster, node), 0U);
  }
  EXPECT_EQ(Holders(cluster, nodes).size(), 200U);
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Read("b", ChainRange("p", 0, 200)), 200U);
  // More at once than may pass through this node: all of it is taken all the same.
  const PutAnswer large = cluster.Put("a", ChainRange("large", 0, 150));
  EXPECT_EQ(large.status, std::vector<PutStatus>(150, PutStatus::kOk));
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Read("c", ChainRange("large", 0, 150)), 150U);
}

TEST(Drain, MovesEverythingWhenThereIsRoom) {
  const std::vector<std::string> nodes{"a", "b", "c"};
  TestCluster cluster({.nodes = nodes, .capacity_bytes = 256 * kTestBlockBytes});
  ASSERT_TRUE(cluster.Settle());
  for (const std::string& node : nodes) cluster.Put(node, ChainRange(node, 0, 120));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_TRUE(cluster.fabric("a").StartDrain(1, std::chrono::seconds(20)).ok());
  EXPECT_TRUE(Eventually([&] { return cluster.fabric("a").DrainProgress().done; },
                         std::chrono::seconds(10)));
  DrainReport report = cluster.fabric("a").DrainProgress();
  EXPECT_TRUE(report.active);
  EXPECT_EQ(report.moved_blocks, 120U);
  EXPECT_EQ(report.moved_bytes, 120 * kTestBlockBytes);
  EXPECT_EQ(report.dropped_blocks, 0U);
  EXPECT_EQ(report.remaining_blocks, 0U);
  // It still serves, and what comes in goes out too.
  cluster.Put("a", ChainRange("late", 0, 10));
  EXPECT_TRUE(Eventually([&] {
    report = cluster.fabric("a").DrainProgress();
    return report.done && report.moved_blocks == 130;
  }));
  ASSERT_TRUE(cluster.Settle());
  cluster.Kill("a");
  // Looked up, not read: repeated reads would keep copies and evict others.
  const auto all_found = [&] {
    for (std::uint32_t first = 0; first < 120; first += 40) {
      const auto found = cluster.Lookup("b", ChainRange("a", first, 40));
      cluster.Release("b", found->lease_id);
      if (found->hits < 40) return false;
    }
    return true;
  };
  EXPECT_TRUE(Eventually(all_found, std::chrono::milliseconds(2000)));
  EXPECT_EQ(cluster.Read("c", ChainRange("late", 0, 10)), 10U);
  EXPECT_EQ(cluster.Read("c", ChainRange("b", 0, 120)), 120U);
}

TEST(Drain, KeepsACopyThatOnlyPassedThroughForAReader) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 4));
  ASSERT_TRUE(cluster.Settle());
  CacheEngine& b = cluster.node("b").pool()->engine();
  {
    const auto read = cluster.Get("b", ChainRange("p", 0, 4));
    ASSERT_TRUE(static_cast<bool>(read->blocks[3]));
    ASSERT_EQ(b.Snapshot({}).size(), 0U);
    ASSERT_TRUE(cluster.fabric("a").StartDrain(1, std::chrono::seconds(20)).ok());
    ASSERT_TRUE(Eventually([&] { return cluster.fabric("a").DrainProgress().done; }));
    EXPECT_EQ(cluster.fabric("a").DrainProgress().moved_blocks, 4U);
    cluster.Release("b", read->lease_id);
  }
  cluster.Kill("a");
  const std::vector<BlockHeader> kept = b.Snapshot({});
  EXPECT_EQ(kept.size(), 4U);
  // The only copies now.
  for (const BlockHeader& block : kept) EXPECT_FALSE(block.has_other_holder);
}

TEST(Push, KeepsACopyThatOnlyPassedThroughForAReader) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 1));
  ASSERT_TRUE(cluster.Settle());
  CacheEngine& b = cluster.node("b").pool()->engine();
  const BlockHeader pushed = cluster.node("a").pool()->engine().Snapshot({}).at(0);
  {
    const auto read = cluster.Get("b", ChainRange("p", 0, 1));
    ASSERT_TRUE(static_cast<bool>(read->blocks[0]));
    PeerHandler& desk = cluster.fabric("b").peer_handler();
    const PeerHandler::SessionId session = desk.OnSessionOpen(cluster.fabric("a").identity());
    const Result<Reservation> place =
        desk.OnPush(session, "pool-uid", OfferReason::kReplica, pushed);
    EXPECT_EQ(place.status().code(), StatusCode::kAlreadyExists);
    desk.OnSessionClosed(session);
    cluster.Release("b", read->lease_id);
  }
  ASSERT_EQ(b.Snapshot({}).size(), 1U);
  EXPECT_TRUE(b.Snapshot({})[0].has_other_holder);
}

TEST(Drain, IncludesAPoolThatWasMadeMeanwhile) {
  TestCluster cluster({.nodes = {"a", "b"}});
  ASSERT_TRUE(cluster.Settle());
  FabricNode& a = cluster.fabric("a");
  ASSERT_TRUE(a.StartDrain(1, std::chrono::seconds(20)).ok());
  ASSERT_TRUE(Eventually([&] { return a.DrainProgress().done; }));
  PoolSpecForAgent second = cluster.spec();
  second.uid = "second-uid";
  second.name = "ns/second";
  ASSERT_TRUE(a.ApplyPools(1, {cluster.spec(), second}).ok());
  EXPECT_TRUE(cluster.node("a").pool("second-uid")->drainer().Progress().active);
  EXPECT_TRUE(Eventually([&] { return a.DrainProgress().done; }));
  ASSERT_TRUE(a.StopDrain(1).ok());
  EXPECT_FALSE(a.DrainProgress().active);
}

TEST(Drain, LeavesNothingToDoWhenItIsStopped) {
  TestCluster cluster({.nodes = {"a", "b"}});
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("a", ChainRange("p", 0, 20));
  ASSERT_TRUE(cluster.Settle());
  cluster.network().Stop("b");
  ASSERT_TRUE(cluster.fabric("a").StartDrain(1, std::chrono::seconds(20)).ok());
  CacheEngine& a = cluster.node("a").pool()->engine();
  ASSERT_TRUE(Eventually([&] { return a.Stats().pinned_bytes > 0; }));  // a batch is under way
  ASSERT_TRUE(cluster.fabric("a").StopDrain(1).ok());
  EXPECT_EQ(cluster.fabric("a").DrainProgress().remaining_blocks, 0U);
  cluster.network().Resume("b");
}

TEST(Drain, MovesTheHottestAndCountsWhatNobodyTakes) {
  TestCluster cluster({.nodes = {"a", "b"}, .capacity_bytes = 64 * kTestBlockBytes});
  ASSERT_TRUE(cluster.Settle());
  // Ages travel, so they are only as good as a message is fast: the three must lie further apart.
  cluster.Put("a", ChainRange("cold", 0, 25));
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("b", ChainRange("b", 0, 40));
  ASSERT_TRUE(cluster.Settle());
  cluster.Put("a", ChainRange("hot", 0, 25));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_TRUE(cluster.fabric("a").StartDrain(1, std::chrono::seconds(20)).ok());
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("a").DrainProgress().done; },
                         std::chrono::seconds(10)));
  const DrainReport report = cluster.fabric("a").DrainProgress();
  EXPECT_EQ(report.moved_blocks + report.dropped_blocks, 50U);
  EXPECT_GT(report.dropped_blocks, 0U) << "moved " << report.moved_blocks;
  ASSERT_TRUE(cluster.Settle());
  const auto hot = cluster.Lookup("b", ChainRange("hot", 0, 25));
  EXPECT_GE(hot->local, 15U);
  ASSERT_TRUE(cluster.fabric("a").StopDrain(1).ok());
  EXPECT_FALSE(cluster.fabric("a").DrainProgress().active);
}

TEST(Drain, EndsAtItsDeadlineWithWhatIsLeftCounted) {
  TestCluster cluster({.nodes = {"a", "b"}});
  ASSERT_TRUE(cluster.Settle());
  cluster.spec().bandwidth_limit_bytes_per_s = 40 * kTestBlockBytes;
  cluster.ApplyPools();
  cluster.Put("a", ChainRange("p", 0, 300));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_TRUE(cluster.fabric("a").StartDrain(1, std::chrono::seconds(2)).ok());
  ASSERT_TRUE(Eventually([&] { return cluster.fabric("a").DrainProgress().done; },
                         std::chrono::seconds(10)));
  const DrainReport report = cluster.fabric("a").DrainProgress();
  EXPECT_EQ(report.moved_blocks + report.dropped_blocks, 300U);
  EXPECT_GE(report.moved_blocks, 32U);
  EXPECT_LE(report.moved_blocks, 160U);
}

}  // namespace
}  // namespace kvfabric
