#include "agent/cluster/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "agent/cluster/directory_feed.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

KeyId MakeId(std::uint64_t number) {
  KeyId id;
  StoreLe<std::uint64_t>(id.bytes.data(), number * 0x9E3779B97F4A7C15ULL + 1);
  StoreLe<std::uint64_t>(id.bytes.data() + 8, number);
  return id;
}

std::set<NodeIndex> NodesOf(const Directory& directory, const KeyId& id) {
  const Directory::Holders holders = directory.Find(id);
  return {holders.span().begin(), holders.span().end()};
}

TEST(Directory, TellsWhetherAnotherNodeHasTheBlock) {
  Directory directory({});
  const HolderId a = directory.OpenHolder(1);
  const HolderId b = directory.OpenHolder(2);
  EXPECT_FALSE(directory.Add(MakeId(7), 3, a));
  EXPECT_FALSE(directory.Add(MakeId(7), 3, a));  // itself is no other
  EXPECT_TRUE(directory.Add(MakeId(7), 3, b));
  EXPECT_EQ(NodesOf(directory, MakeId(7)), (std::set<NodeIndex>{1, 2}));
  directory.Remove(MakeId(7), 1);
  EXPECT_EQ(NodesOf(directory, MakeId(7)), std::set<NodeIndex>{2});
  directory.Remove(MakeId(7), 2);
  EXPECT_EQ(directory.counts().entries, 0U);
}

TEST(Directory, ForgetsARetiredHolderAtOnceAndFreesItsNumberWhenSwept) {
  Directory directory({});
  for (int run = 0; run < 20'000; ++run) {  // more incarnations than there are numbers
    const HolderId holder = directory.OpenHolder(1);
    ASSERT_NE(holder, kNoHolder) << run;
    directory.Add(MakeId(1), 0, holder);
    ASSERT_EQ(directory.Find(MakeId(1)).count, 1);
    directory.RetireHolder(holder);
    ASSERT_EQ(directory.Find(MakeId(1)).count, 0);
    if (run % 1000 == 999) directory.Sweep({});
  }
  directory.Sweep({});
  EXPECT_EQ(directory.counts().entries, 0U);
}

TEST(Directory, SweepsSlotsThatAreNotOwned) {
  Directory directory({});
  const HolderId holder = directory.OpenHolder(1);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    directory.Add(MakeId(i), static_cast<std::uint32_t>(i % 10), holder);
  }
  std::vector<bool> owned(10, true);
  owned[4] = false;
  directory.Sweep(owned);
  EXPECT_EQ(directory.counts().entries, 4500U);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    EXPECT_EQ(directory.Find(MakeId(i)).count, i % 10 == 4 ? 0 : 1) << i;
  }
}

TEST(Directory, StaysWithinItsBytesAndShedsEntries) {
  Directory directory({.max_bytes = 1U << 20U});
  const HolderId holder = directory.OpenHolder(1);
  for (std::uint64_t i = 0; i < 200'000; ++i) directory.Add(MakeId(i), 0, holder);
  const Directory::Counts counts = directory.counts();
  EXPECT_LE(counts.bytes, 1U << 20U);
  EXPECT_GT(counts.entries, (1U << 20U) / 32 / 2);
  EXPECT_EQ(counts.entries + counts.shed, 200'000U);
}

TEST(Directory, EqualsAMapAfterRandomChanges) {
  std::mt19937_64 random(TestSeed());
  Directory directory({});
  std::map<std::uint64_t, std::set<NodeIndex>> model;
  std::vector<HolderId> holders(5);
  for (NodeIndex node = 0; node < 5; ++node) holders[node] = directory.OpenHolder(node);
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t key = random() % 3000;
    const auto node = static_cast<NodeIndex>(random() % 5);
    switch (random() % 1000) {
      case 0:
        directory.RetireHolder(holders[node]);
        holders[node] = directory.OpenHolder(node);
        for (auto& [id, nodes] : model) nodes.erase(node);
        break;
      case 1:
        directory.Sweep({});
        break;
      default:
        if (random() % 2 == 0) {
          std::set<NodeIndex>& nodes = model[key];
          const bool other = nodes.size() > nodes.count(node);
          ASSERT_EQ(directory.Add(MakeId(key), 0, holders[node]), other);
          nodes.insert(node);
        } else {
          directory.Remove(MakeId(key), node);
          model[key].erase(node);
        }
    }
  }
  std::map<NodeIndex, std::size_t> counts;
  for (const auto& [key, nodes] : model) {
    EXPECT_EQ(NodesOf(directory, MakeId(key)), nodes) << key;
    for (const NodeIndex node : nodes) ++counts[node];
  }
  for (NodeIndex node = 0; node < 5; ++node) {
    EXPECT_EQ(directory.EntriesOf(node, 1U << 20U).size(), counts[node]);
  }
}

class DirectoryFeedTest : public testing::Test {
 protected:
  AnnounceRequest Message(std::uint64_t sequence, std::vector<std::uint64_t> added,
                          std::vector<std::uint64_t> removed = {}) {
    AnnounceRequest request;
    request.sequence = sequence;
    for (const std::uint64_t id : added) request.added.push_back({MakeId(id), 0});
    for (const std::uint64_t id : removed) request.removed.push_back(MakeId(id));
    return request;
  }
  AnnounceReply Apply(std::uint64_t boot_epoch, const AnnounceRequest& request) {
    return feed_.Apply(1, boot_epoch, request).value();
  }
  bool Knows(std::uint64_t id) { return directory_.Find(MakeId(id)).count > 0; }

  MetricsRegistry metrics_;
  Directory directory_{{}};
  DirectoryFeed feed_{directory_,
                      {.announced = &metrics_.GetCounter("announced", ""),
                       .resyncs = &metrics_.GetCounter("resyncs", ""),
                       .repeats = &metrics_.GetCounter("repeats", "")}};
};

TEST_F(DirectoryFeedTest, IgnoresRepeatsAndAsksForASnapshotAfterAGap) {
  EXPECT_FALSE(Apply(10, Message(1, {1, 2})).resync);
  EXPECT_FALSE(Apply(10, Message(2, {3}, {1})).resync);
  EXPECT_FALSE(Apply(10, Message(1, {1, 2})).resync);  // late: 1 is gone since
  EXPECT_FALSE(Knows(1));
  EXPECT_TRUE(Apply(10, Message(4, {5})).resync);
  EXPECT_FALSE(Knows(5));
  EXPECT_TRUE(Apply(10, Message(5, {6})).resync);  // until the snapshot comes

  AnnounceRequest begin = Message(6, {3});
  begin.snapshot_begin = true;
  EXPECT_FALSE(Apply(10, begin).resync);
  EXPECT_TRUE(Knows(2));  // still believed while the snapshot is under way
  AnnounceRequest end = Message(7, {8});
  end.snapshot_end = true;
  EXPECT_FALSE(Apply(10, end).resync);
  EXPECT_FALSE(Knows(2));
  EXPECT_TRUE(Knows(3));
  EXPECT_TRUE(Knows(8));
  EXPECT_FALSE(Apply(10, begin).resync);  // a late copy changes nothing
  EXPECT_TRUE(Knows(8));
  EXPECT_FALSE(Apply(10, Message(8, {9})).resync);
}

TEST_F(DirectoryFeedTest, DropsEntriesOfAnOlderRunAtOnceAndRefusesItsLateMessages) {
  Apply(10, Message(1, {1}));
  feed_.NoteBoot(1, 11);
  EXPECT_FALSE(Knows(1));
  EXPECT_EQ(feed_.Apply(1, 10, Message(2, {2})).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Apply(11, Message(1, {3})).resync);
  EXPECT_TRUE(Knows(3));
  Apply(12, Message(1, {4}));  // seen in a message first
  EXPECT_FALSE(Knows(3));
  EXPECT_TRUE(Knows(4));
}

TEST_F(DirectoryFeedTest, WantsASnapshotFromAHolderItForgot) {
  Apply(10, Message(1, {1}));
  feed_.Forget(1);
  EXPECT_FALSE(Knows(1));
  EXPECT_TRUE(Apply(10, Message(2, {2})).resync);
  AnnounceRequest whole = Message(3, {1, 2});
  whole.snapshot_begin = whole.snapshot_end = true;
  EXPECT_FALSE(Apply(10, whole).resync);
  EXPECT_TRUE(Knows(1));
}

TEST_F(DirectoryFeedTest, ComesBackToItsSizeAfterManyRuns) {
  for (std::uint64_t boot = 1; boot <= 200; ++boot) {
    AnnounceRequest whole = Message(1, {});
    for (std::uint64_t id = 0; id < 100; ++id) whole.added.push_back({MakeId(boot * 1000 + id), 0});
    Apply(boot, whole);
    if (boot % 50 == 0) feed_.Sweep({});
  }
  feed_.Sweep({});
  EXPECT_EQ(directory_.counts().entries, 100U);
  EXPECT_EQ(feed_.holder_count(), 1U);
}

}  // namespace
}  // namespace kvfabric
