#include "agent/block/block_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

KeyId IdOfNumber(std::uint64_t number) {
  KeyId id;
  StoreLe(id.bytes.data(), number * 0x9E37'79B9'7F4A'7C15U + 1);
  StoreLe(id.bytes.data() + 8, number);
  return id;
}

BlockEntry* Find(BlockTable& table, const KeyId& id) {
  BlockTable::Shard& shard = table.ShardOf(id);
  MutexLock lock(shard.mu);
  return shard.Find(id);
}
void Insert(BlockTable& table, BlockEntry* entry) {
  BlockTable::Shard& shard = table.ShardOf(entry->header.id);
  MutexLock lock(shard.mu);
  shard.Insert(entry);
}
void Remove(BlockTable& table, BlockEntry* entry) {
  BlockTable::Shard& shard = table.ShardOf(entry->header.id);
  MutexLock lock(shard.mu);
  shard.Remove(entry);
}

TEST(BlockTable, FindsAnEntryOnlyWhileItIsCommitted) {
  BlockTable table(100);
  const KeyId id = IdOfNumber(7);
  BlockEntry* entry = table.Acquire(id);
  EXPECT_EQ(entry->state, BlockEntry::State::kReserved);
  EXPECT_EQ(Find(table, id), nullptr);
  Insert(table, entry);
  EXPECT_EQ(Find(table, id), entry);
  Remove(table, entry);
  EXPECT_EQ(Find(table, id), nullptr);
  EXPECT_EQ(entry->state, BlockEntry::State::kDraining);
  const std::uint32_t generation = entry->generation;
  table.Release(entry);
  EXPECT_EQ(entry->generation, generation + 1);
}

TEST(BlockTable, HoldsItsCapacityHard) {
  BlockTable table(10);
  std::vector<BlockEntry*> entries;
  for (std::uint64_t i = 0; i < 10; ++i) entries.push_back(table.Acquire(IdOfNumber(i)));
  EXPECT_EQ(table.Acquire(IdOfNumber(10)), nullptr);
  EXPECT_EQ(table.in_use(), 10U);
  table.Release(entries.back());
  EXPECT_NE(table.Acquire(IdOfNumber(10)), nullptr);
}

// Against a map, with ids that spread and ids that all meet in one place.
TEST(BlockTable, AgreesWithAMapAlsoWhenHashesCollide) {
  std::mt19937_64 random(TestSeed());
  for (const bool collide : {false, true}) {
    BlockTable table(2000);
    std::map<KeyId, BlockEntry*> model;
    for (int step = 0; step < 30'000; ++step) {
      KeyId id = IdOfNumber(random() % 3000);
      if (collide) StoreLe(id.bytes.data(), std::uint64_t{random() % 4} << 8U);
      const auto found = model.find(id);
      ASSERT_EQ(Find(table, id), found == model.end() ? nullptr : found->second);
      if (found == model.end()) {
        BlockEntry* entry = table.Acquire(id);
        ASSERT_EQ(entry == nullptr, model.size() == 2000);
        if (entry == nullptr) continue;
        Insert(table, entry);
        model[id] = entry;
      } else if (random() % 2 == 0) {
        Remove(table, found->second);
        table.Release(found->second);
        model.erase(found);
      }
    }
    std::set<KeyId> seen;
    for (std::size_t i = 0; i < table.shard_count(); ++i) {
      BlockTable::Shard& shard = table.shard(i);
      MutexLock lock(shard.mu);
      shard.ForEach([&seen](const BlockEntry& entry) { seen.insert(entry.header.id); });
    }
    EXPECT_EQ(seen.size(), model.size());
    for (const auto& [id, entry] : model) EXPECT_TRUE(seen.contains(id));
  }
}

TEST(BlockTableDeathTest, EndsTheProcessWhenAPinnedOrVisibleEntryIsReleased) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  BlockTable table(10);
  BlockEntry* entry = table.Acquire(IdOfNumber(1));
  entry->word.fetch_add(1);
  EXPECT_DEATH(table.Release(entry), "pinned");
  entry->word.fetch_sub(1);
  Insert(table, entry);
  EXPECT_DEATH(table.Release(entry), "others can find it");
}

}  // namespace
}  // namespace kvfabric
