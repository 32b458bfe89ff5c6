// Leases across nodes, budgets, lanes and tenants.

#include <gtest/gtest.h>

#include "tests/cluster/cluster_fixture.h"

namespace kvfabric {
namespace {

std::uint64_t PinnedAt(TestCluster& cluster, const std::string& node) {
  return cluster.node(node).pool()->engine().Stats().pinned_bytes;
}

TEST(Leases, PinAtTheHolderUntilTheClientReleases) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  const auto found = cluster.Lookup("b", ChainRange("p", 0, 10));
  ASSERT_EQ(found->hits, 10U);
  EXPECT_EQ(PinnedAt(cluster, "a"), 10 * kTestBlockBytes);
  EXPECT_EQ(cluster.fabric("a").lease_stats().leases, 1U);
  cluster.Release("b", found->lease_id);
  EXPECT_TRUE(Eventually([&] { return cluster.fabric("a").lease_stats().leases == 0; }));
  EXPECT_EQ(PinnedAt(cluster, "a"), 0U);
}

TEST(Leases, EndWithTheClientsSession) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 10));
  cluster.Put("b", ChainRange("q", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_EQ(cluster.Lookup("b", ChainRange("p", 0, 10))->hits, 10U);
  ASSERT_EQ(cluster.Lookup("b", ChainRange("q", 0, 10))->hits, 10U);
  EXPECT_EQ(cluster.fabric("b").lease_stats().leases, 2U);
  cluster.fabric("b").CloseSession(cluster.session("b"));
  EXPECT_EQ(cluster.fabric("b").lease_stats().leases, 0U);
  EXPECT_EQ(PinnedAt(cluster, "b"), 0U);
  EXPECT_TRUE(Eventually([&] { return PinnedAt(cluster, "a") == 0; }));
}

TEST(Leases, EndWhenThePeerVanishes) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  ASSERT_EQ(cluster.Lookup("b", ChainRange("p", 0, 10))->hits, 10U);
  ASSERT_GT(PinnedAt(cluster, "a"), 0U);
  cluster.Kill("b");
  EXPECT_TRUE(Eventually([&] { return cluster.fabric("a").lease_stats().leases == 0; }));
  EXPECT_EQ(PinnedAt(cluster, "a"), 0U);
}

TEST(Leases, AreRenewedAtTheHolderToo) {
  const LeaseTableOptions leases{.ttl = std::chrono::milliseconds(400)};
  TestCluster cluster({.nodes = {"a", "b"}, .leases = leases});
  cluster.Put("a", ChainRange("p", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  const auto found = cluster.Lookup("b", ChainRange("p", 0, 10));
  ASSERT_EQ(found->hits, 10U);
  EXPECT_LE(found->lease, std::chrono::milliseconds(400));
  const auto start = std::chrono::steady_clock::now();
  // Renewed all the time: pinned at the holder well after one lease time.
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(cluster.fabric("b").Renew(cluster.session("b"), found->lease_id));
    EXPECT_GT(PinnedAt(cluster, "a"), 0U);
    return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(1200);
  }));
  const auto got = cluster.Get("b", ChainRange("p", 0, 10), found->lease_id);
  EXPECT_TRUE(static_cast<bool>(got->blocks[9]));
  EXPECT_EQ(got->lease_id, found->lease_id);
  // Then no more: it runs out here and there.
  EXPECT_TRUE(Eventually([&] { return PinnedAt(cluster, "a") == 0; }));
  EXPECT_FALSE(cluster.fabric("b").Renew(cluster.session("b"), found->lease_id));
}

TEST(Leases, AreRenewedAtTheHolderAgainATenthOfASecondLater) {
  TestCluster cluster({.nodes = {"a", "b"}});
  ASSERT_TRUE(cluster.Settle());
  PeerSet& peers = cluster.fabric("b").peers();
  const NodeIndex a = cluster.node("b").pool()->context().names->Find("a");
  const std::chrono::milliseconds ttl(10'000);
  const Clock::TimePoint start = Clock::System().Now();
  {
    RemoteLease lease(peers, "pool-uid");
    lease.Add({a, 1, {}});
    EXPECT_TRUE(lease.BeginRenewal(start, ttl));
    EXPECT_FALSE(lease.BeginRenewal(start + std::chrono::milliseconds(99), ttl));
    lease.Replace(1, {a, 2, {}}, start);
    EXPECT_TRUE(lease.BeginRenewal(start + std::chrono::milliseconds(100), ttl));
    lease.Replace(2, {a, 3, {}}, start + std::chrono::milliseconds(100));
    // Reads may go on under the older ones for a while: only the first goes.
    EXPECT_TRUE(lease.BeginRenewal(start + ttl / 4, ttl));
    EXPECT_TRUE(Eventually([&] { return cluster.network().calls("release") == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return cluster.network().calls("release") == 3; }));
}

TEST(Leases, StopAtTheBudgetWithThatReason) {
  TestCluster cluster({.nodes = {"a", "b"}, .capacity_bytes = 64 * kTestBlockBytes});
  cluster.Put("a", ChainRange("p", 0, 40));
  ASSERT_TRUE(cluster.Settle());
  // A quarter of the tier for a session: 16 blocks.
  const auto here = cluster.Lookup("a", ChainRange("p", 0, 40));
  EXPECT_EQ(here->hits, 16U);
  EXPECT_EQ(here->miss_reason, MissReason::kLeaseBudget);
  // The peer's session has a budget of its own at the holder.
  const auto there = cluster.Lookup("b", ChainRange("p", 0, 40));
  EXPECT_EQ(there->hits, 16U);
  cluster.Release("a", here->lease_id);
  EXPECT_EQ(cluster.Lookup("a", ChainRange("p", 20, 16))->hits, 16U);
}

TEST(Lanes, AnswerTheMinimum) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  const std::vector<Lane> lanes{{0, 0}, {0, 1}, {1, Lane::kSharedRank}};
  cluster.Put("a", ChainRange("p", 0, 12), "", lanes[0]);
  cluster.Put("b", ChainRange("p", 0, 9), "", lanes[1]);
  cluster.Put("a", ChainRange("p", 0, 11), "", lanes[2]);
  ASSERT_TRUE(cluster.Settle());
  for (const std::string node : {"a", "b", "c"}) {
    const auto found = cluster.Lookup(node, ChainRange("p", 0, 12), lanes);
    EXPECT_EQ(found->hits, 9U) << node;
    for (const Lane lane : lanes) {
      const auto got = cluster.Get(node, ChainRange("p", 0, 9), found->lease_id, lane);
      EXPECT_TRUE(static_cast<bool>(got->blocks[8])) << node;
    }
    cluster.Release(node, found->lease_id);
  }
  // One lane's block goes: the whole block is a miss for all ranks, wherever they ask.
  Waiter<std::uint32_t> waiter;
  cluster.fabric("b").Delete(
      cluster.session("b"), {cluster.ns("b"), lanes[1], ChainRange("p", 4, 1), 0},
      Deadline::After(Clock::System(), std::chrono::seconds(1)), waiter.done());
  EXPECT_EQ(waiter.Wait().value(), 1U);
  for (const std::string node : {"a", "b", "c"}) {
    EXPECT_EQ(cluster.Lookup(node, ChainRange("p", 0, 12), lanes)->hits, 4U) << node;
  }
}

TEST(Tenants, SeeNothingOfEachOther) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("secret", 0, 10));
  ASSERT_TRUE(cluster.Settle());
  const double leases = static_cast<double>(cluster.network().calls("lease"));
  const KeyRange range = ChainRange("secret", 0, 10);
  const NamespaceRef theirs = cluster.ns("b", "mallory");
  EXPECT_NE(theirs->digest, cluster.ns("b")->digest);
  Waiter<LookupAnswer> waiter;
  cluster.fabric("b").Lookup(cluster.session("b", "mallory"), {theirs, {Lane{}}, range},
                             Deadline::After(Clock::System(), std::chrono::seconds(1)),
                             waiter.done());
  EXPECT_EQ(waiter.Wait()->hits, 0U);
  // No entry of the other tenant was touched: nobody was asked for a lease.
  EXPECT_EQ(static_cast<double>(cluster.network().calls("lease")), leases);
  for (const std::string node : {"a", "b"}) {
    EXPECT_EQ(cluster.node(node).pool()->metrics().hits_local.Value(), 0) << node;
    EXPECT_EQ(cluster.node(node).pool()->metrics().hits_peer.Value(), 0) << node;
  }
  // A namespace is no key to another tenant's door: the session decides.
  Waiter<LookupAnswer> forged;
  cluster.fabric("b").Lookup(cluster.session("b", "mallory"), {cluster.ns("b"), {Lane{}}, range},
                             Deadline::After(Clock::System(), std::chrono::seconds(1)),
                             forged.done());
  EXPECT_EQ(forged.Wait().status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(cluster.fabric("b").Stat(cluster.session("b", "mallory")).size(), 1U);
  EXPECT_TRUE(cluster.fabric("b").Stat(999).empty());
}

TEST(Singles, AnswerEachKeyByItself) {
  TestCluster cluster({.nodes = {"a", "b"}});
  KeyRange range;
  range.keys = {"k0", "k1", "k2", "k3", "k4"};
  const std::string content = BlockContent("single");
  PutArgs args;
  args.ns = cluster.ns("a", "default", NamespaceKind::kSingle);
  args.range.keys = {"k1", "k4"};
  args.items = {{AsBytes(content), 0, ""}, {AsBytes(content), 0, "meta"}};
  Waiter<PutAnswer> put;
  cluster.fabric("a").Put(cluster.session("a"), std::move(args),
                          Deadline::After(Clock::System(), std::chrono::seconds(1)), put.done());
  ASSERT_TRUE(put.Wait().ok());
  ASSERT_TRUE(cluster.Settle());
  const NamespaceRef ns = cluster.ns("b", "default", NamespaceKind::kSingle);
  Waiter<LookupAnswer> found;
  cluster.fabric("b").Lookup(cluster.session("b"), {ns, {Lane{}}, range},
                             Deadline::After(Clock::System(), std::chrono::seconds(1)),
                             found.done());
  EXPECT_EQ(found.Wait()->found, (std::vector<bool>{false, true, false, false, true}));
  Waiter<GetAnswer> got;
  cluster.fabric("b").Get(cluster.session("b"), {ns, Lane{}, range, 0},
                          Deadline::After(Clock::System(), std::chrono::seconds(1)), got.done());
  const GetAnswer answer = got.Wait().value();
  EXPECT_FALSE(static_cast<bool>(answer.blocks[0]));
  ASSERT_TRUE(static_cast<bool>(answer.blocks[4]));
  EXPECT_EQ(AsText(answer.blocks[4].bytes()), content);
  EXPECT_EQ(answer.blocks[4].header().metadata, "meta");
}

TEST(Reads, KeepACopyTheSecondTime) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 6));
  ASSERT_TRUE(cluster.Settle());
  CacheEngine& engine = cluster.node("b").pool()->engine();
  EXPECT_EQ(cluster.Read("b", ChainRange("p", 0, 6)), 6U);
  EXPECT_TRUE(Eventually([&] { return engine.Stats().transient_bytes == 0; }));
  EXPECT_EQ(engine.Snapshot({}).size(), 0U);
  EXPECT_EQ(cluster.Read("b", ChainRange("p", 0, 6)), 6U);
  EXPECT_EQ(engine.Snapshot({}).size(), 6U);
  const auto again = cluster.Lookup("b", ChainRange("p", 0, 6));
  EXPECT_EQ(again->local, 6U);
  EXPECT_TRUE(engine.PinById(engine.Snapshot({})[0].id)->header().has_other_holder);
}

TEST(Puts, RefuseWhatDoesNotMatchItsChecksum) {
  TestCluster cluster({.nodes = {"a"}});
  const std::string content = BlockContent("x");
  PutArgs args;
  args.ns = cluster.ns("a");
  args.range = ChainRange("p", 0, 1);
  args.items = {{AsBytes(content), 12345, ""}};
  Waiter<PutAnswer> put;
  cluster.fabric("a").Put(cluster.session("a"), std::move(args),
                          Deadline::After(Clock::System(), std::chrono::seconds(1)), put.done());
  EXPECT_EQ(put.Wait()->status[0], PutStatus::kChecksumMismatch);
  EXPECT_EQ(cluster.Lookup("a", ChainRange("p", 0, 1))->hits, 0U);
}

}  // namespace
}  // namespace kvfabric
