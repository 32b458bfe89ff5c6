// The thin path: put on one node, look up and get on another.

#include <gtest/gtest.h>

#include <thread>

#include "tests/cluster/cluster_fixture.h"

namespace kvfabric {
namespace {

TEST(Fabric, ServesWhatWasPutHere) {
  TestCluster cluster({.nodes = {"a"}});
  const KeyRange range = ChainRange("p", 0, 40);
  const PutAnswer put = cluster.Put("a", range);
  EXPECT_EQ(put.status, std::vector<PutStatus>(40, PutStatus::kOk));
  const Result<LookupAnswer> found = cluster.Lookup("a", ChainRange("p", 0, 50));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->hits, 40U);
  EXPECT_EQ(found->local, 40U);
  EXPECT_EQ(found->miss_reason, MissReason::kNotFound);
  EXPECT_NE(found->lease_id, 0U);
  EXPECT_EQ(cluster.Read("a", ChainRange("p", 10, 40)), 30U);
  const PutAnswer again = cluster.Put("a", range, "other version");
  EXPECT_EQ(again.status, std::vector<PutStatus>(40, PutStatus::kAlreadyExists));
  EXPECT_EQ(cluster.Read("a", range), 40U);
}

// A call that has just ended may hold its pool a moment longer; what the pool borrows stays for it.
TEST(Fabric, GoesAfterTheLastOfItsPools) {
  auto cluster = std::make_unique<TestCluster>(TestCluster::Options{.nodes = {"a"}});
  PoolRef pool = cluster->node("a").pool();
  const std::weak_ptr<PoolNode> seen = pool;
  std::thread last([pool = std::move(pool)]() mutable {
    while (pool.use_count() > 1) std::this_thread::yield();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();
    pool.reset();
  });
  cluster.reset();
  EXPECT_TRUE(seen.expired());
  last.join();
}

TEST(Fabric, FindsOnAnotherNodeWhatWasPutOnOne) {
  TestCluster cluster({.nodes = {"a", "b"}});
  cluster.Put("a", ChainRange("p", 0, 40));
  ASSERT_TRUE(cluster.Settle());
  const Result<LookupAnswer> found = cluster.Lookup("b", ChainRange("p", 0, 50));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->hits, 40U);
  EXPECT_EQ(found->peer, 40U);
  EXPECT_EQ(found->local, 0U);
  const Result<GetAnswer> got = cluster.Get("b", ChainRange("p", 0, 40), found->lease_id);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->lease_id, found->lease_id);
  for (std::size_t at = 0; at < 40; ++at) {
    ASSERT_TRUE(static_cast<bool>(got->blocks[at])) << at;
    EXPECT_TRUE(got->from_peer[at]);
    EXPECT_EQ(AsText(got->blocks[at].bytes()), BlockContent("p/" + std::to_string(at)));
  }
}

TEST(Fabric, JoinsPrefixesThatLieOnDifferentNodes) {
  TestCluster cluster({.nodes = {"a", "b", "c"}});
  cluster.Put("a", ChainRange("p", 0, 10));
  cluster.Put("b", ChainRange("p", 10, 10));
  cluster.Put("c", ChainRange("p", 20, 10));
  cluster.Put("a", ChainRange("p", 31, 9));  // a hole at 30
  ASSERT_TRUE(cluster.Settle());
  for (const std::string node : {"a", "b", "c"}) {
    const Result<LookupAnswer> found = cluster.Lookup(node, ChainRange("p", 0, 40));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->hits, 30U) << node;
    EXPECT_EQ(found->local, 10U) << node;
    EXPECT_EQ(cluster.Read(node, ChainRange("p", 0, 40)), 30U) << node;
  }
}

}  // namespace
}  // namespace kvfabric
