// Nodes that die, stop, come back, or miss a map.

#include <gtest/gtest.h>

#include <chrono>

#include "placement/shard_map_codec.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

milliseconds Since(steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
}

milliseconds Scaled(int ms) { return milliseconds(static_cast<int>(ms * TimeScale())); }

TEST(Failure, MakesMissesOfALostHoldersBlocksAtOnce) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 20));
  ASSERT_TRUE(cluster.Settle());
  const auto leased = cluster.Lookup("b", ChainRange("p", 0, 20));
  ASSERT_EQ(leased->hits, 20U);
  const auto killed_at = steady_clock::now();
  cluster.Kill("a");
  const auto got = cluster.Get("b", ChainRange("p", 0, 20), leased->lease_id);
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(static_cast<bool>(got->blocks[0]));
  // No call hung, and nobody promises those blocks any more.
  EXPECT_LT(Since(killed_at), Scaled(1500));
  ASSERT_TRUE(Eventually([&] { return cluster.Lookup("c", ChainRange("p", 0, 20))->hits == 0; },
                         milliseconds(2000)));
  for (int again = 0; again < 20; ++again) {
    EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 20))->hits, 0U);
  }
  EXPECT_EQ(cluster.Put("b", ChainRange("p", 0, 20)).status[0], PutStatus::kOk);
}

TEST(Failure, AnswersWhatItHasByTheDeadlineWhenAHolderIsStopped) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 16));
  cluster.Put("c", ChainRange("p", 16, 16));
  ASSERT_TRUE(cluster.Settle());
  const auto leased = cluster.Lookup("b", ChainRange("p", 0, 32));
  ASSERT_EQ(leased->hits, 32U);
  cluster.network().Stop("c");
  const auto start = steady_clock::now();
  const auto got =
      cluster.Get("b", ChainRange("p", 0, 32), leased->lease_id, Lane{}, milliseconds(200));
  EXPECT_LT(Since(start), Scaled(300));
  ASSERT_TRUE(got.ok());
  for (std::size_t at = 0; at < 32; ++at) {
    EXPECT_EQ(static_cast<bool>(got->blocks[at]), at < 16) << at;
  }
  cluster.network().Resume("c");
}

TEST(Failure, RoutesRoundAStoppedOwnerWithinTwoSeconds) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 64));
  ASSERT_TRUE(cluster.Settle());
  cluster.network().Stop("c");
  const auto start = steady_clock::now();
  // Every look-up keeps its deadline, and soon all blocks are found without c.
  ASSERT_TRUE(Eventually(
      [&] {
        const auto call = steady_clock::now();
        const auto found = cluster.Lookup("b", ChainRange("p", 0, 64), {Lane{}}, milliseconds(100));
        EXPECT_LT(Since(call), Scaled(200));
        return found->hits == 64;
      },
      milliseconds(2000)));
  EXPECT_LT(Since(start), Scaled(2000));
  cluster.network().Resume("c");
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Lookup("c", ChainRange("p", 0, 64))->hits, 64U);
}

TEST(Failure, ForgetsWhatAnEarlierRunHeld) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 20));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_EQ(cluster.Lookup("b", ChainRange("p", 0, 20))->hits, 20U);
  const std::uint64_t boot = cluster.fabric("a").boot_epoch();
  cluster.Kill("a");
  cluster.Start("a");  // pools and map come from its disk
  EXPECT_GT(cluster.fabric("a").boot_epoch(), boot);
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 20))->hits, 0U);
  EXPECT_EQ(cluster.fabric("a").PoolReports().at(0).applied_epoch, 1U);
  cluster.Put("a", ChainRange("p", 0, 12));
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Read("b", ChainRange("p", 0, 20)), 12U);
  // The new run is an owner too: it was told again what the others hold.
  cluster.Put("c", ChainRange("q", 0, 20));
  ASSERT_TRUE(cluster.Settle());
  EXPECT_EQ(cluster.Read("a", ChainRange("q", 0, 20)), 20U);
}

TEST(Failure, KeepsItsTablesSmallOverManyRuns) {
  TestCluster cluster({.nodes = {"a", "b"}, .arena_bytes = 8U << 20U});
  for (int run = 0; run < 40; ++run) {
    cluster.Put("a", ChainRange("run" + std::to_string(run), 0, 5));
    if (run % 2 == 0) {
      ASSERT_TRUE(cluster.Settle());
    }
    cluster.Kill("a");
    cluster.Start("a");
  }
  ASSERT_TRUE(cluster.Settle());
  PoolNode& b = *cluster.node("b").pool();
  EXPECT_EQ(b.feed().holder_count(), 2U);
  EXPECT_TRUE(Eventually([&] { return b.directory().counts().entries == 0; }));
  EXPECT_LE(cluster.fabric("b").peer_session_count(), 1U);
  EXPECT_EQ(cluster.fabric("b").lease_stats().leases, 0U);
}

TEST(Failure, LetsManyNodesThatStartAtOnceFindEachOther) {
  std::vector<std::string> nodes;
  for (int i = 0; i < 16; ++i) nodes.push_back("n" + std::to_string(i));
  TestCluster cluster({.nodes = nodes, .arena_bytes = 4U << 20U});
  cluster.Put("n3", ChainRange("p", 0, 30));
  ASSERT_TRUE(cluster.Settle());
  for (const std::string& node : nodes) EXPECT_EQ(cluster.Read(node, ChainRange("p", 0, 30)), 30U);
}

TEST(ShardMaps, AreTakenFromAPeerWhenTheOperatorIsAway) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("b", ChainRange("p", 0, 20));
  ASSERT_TRUE(cluster.Settle());
  const ShardMap map = cluster.MakeMap({"c", "a", "b"});  // other owners
  cluster.ApplyMap(map, {"a"});
  EXPECT_TRUE(Eventually([&] {
    cluster.Put("b", ChainRange("q", 0, 1));
    cluster.Put("c", ChainRange("r", 0, 1));
    return cluster.fabric("b").map_epoch("pool-uid") == map.epoch &&
           cluster.fabric("c").map_epoch("pool-uid") == map.epoch;
  }));
  ASSERT_TRUE(cluster.Settle());
  for (const std::string node : {"a", "b", "c"}) {
    EXPECT_EQ(cluster.Read(node, ChainRange("p", 0, 20)), 20U) << node;
  }
}

TEST(ShardMaps, OlderOnesAndOlderTermsAreRefused) {
  TestCluster cluster({.nodes = {"a"}});
  ShardMap map = cluster.MakeMap({"a"});
  map.term = 5;
  cluster.ApplyMap(map);
  FabricNode& a = cluster.fabric("a");
  const auto apply = [&a](const ShardMap& m) {
    return a.ApplyMap(m.pool_uid, AsText(SerializeShardMap(m).value())).code();
  };
  EXPECT_EQ(apply(map), StatusCode::kOk);  // again
  ShardMap older = map;
  --older.epoch;
  EXPECT_EQ(apply(older), StatusCode::kFailedPrecondition);
  older = map;
  --older.term;
  ++older.epoch;
  EXPECT_EQ(apply(older), StatusCode::kFailedPrecondition);
  ShardMap other_shape = map;
  other_shape.epoch += 1;
  other_shape.slot_count *= 2;
  other_shape.table.insert(other_shape.table.end(), map.table.begin(), map.table.end());
  EXPECT_EQ(apply(other_shape), StatusCode::kInvalidArgument);
  EXPECT_EQ(a.ApplyMap("pool-uid", "garbage").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a.map_epoch("pool-uid"), map.epoch);

  EXPECT_TRUE(a.ApplyPools(9, {cluster.spec()}).ok());
  EXPECT_EQ(a.ApplyPools(8, {cluster.spec()}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(a.ApplyPools(8, {}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(a.StartDrain(8, std::chrono::seconds(1)).code(), StatusCode::kFailedPrecondition);
  PoolSpecForAgent other = cluster.spec();  // an operator with a new store: a new sequence
  other.uid = "another";
  EXPECT_TRUE(a.ApplyPools(0, {other}).ok());
  EXPECT_EQ(a.PoolReports().size(), 1U);
  EXPECT_EQ(a.PoolReports()[0].uid, "another");
}

TEST(Pools, ThatAreGoneTakeTheirBlocksWithThem) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  const NamespaceRef ns = cluster.ns("a");
  EXPECT_TRUE(cluster.fabric("a").ApplyPools(2, {}).ok());
  Waiter<LookupAnswer> waiter;
  cluster.fabric("a").Lookup(cluster.session("a"), {ns, {Lane{}}, ChainRange("p", 0, 10)},
                             Deadline::After(Clock::System(), milliseconds(100)), waiter.done());
  EXPECT_EQ(waiter.Wait().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cluster.Lookup("b", ChainRange("p", 0, 10))->hits, 0U);
  EXPECT_EQ(cluster.fabric("a")
                .ResolveNamespace("ns/pool", "default", "", NamespaceKind::kChain)
                .status()
                .code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvfabric
