#include "placement/directory_load.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "common/block_key.h"
#include "common/bytes.h"
#include "placement/slot.h"
#include "tests/placement/test_pool.h"

namespace kvfabric {
namespace {

MemberIndex OwnerOfId(const ShardMap& map, std::uint64_t id) {
  std::string key(8, '\0');
  for (int i = 0; i < 8; ++i)
    key[static_cast<std::size_t>(i)] = static_cast<char>(id >> (56 - 8 * i));
  return map.Owners(SlotOf(AsBytes(key), map.slot_count))[0];
}

TEST(DirectoryLoad, CountsEachBlockAtTheOwnerOfItsRun) {
  TestPool pool(1);
  pool.AddMembers(5);
  pool.Plan();
  std::vector<std::uint64_t> chain(40);
  std::iota(chain.begin(), chain.end(), 1'000U);
  DirectoryLoad load(pool.map);
  load.AddChain(chain);
  load.AddChain(std::span(chain).first(3));  // looked up again, nothing new

  std::vector<std::uint64_t> entries(5, 0);
  for (std::size_t depth = 0; depth < chain.size(); ++depth) {
    ++entries[OwnerOfId(pool.map, chain[RunStart(static_cast<std::uint32_t>(depth))])];
  }
  EXPECT_EQ(load.entries(), entries);
  EXPECT_EQ(load.distinct_blocks(), 40U);
  EXPECT_EQ(std::accumulate(load.lookups().begin(), load.lookups().end(), std::uint64_t{0}), 43U);
}

TEST(DirectoryLoad, ComparesTheLargestWithTheMeanOfOwners) {
  TestPool pool(1);
  pool.AddMembers(4);
  pool.Plan();
  DirectoryLoad load(pool.map);
  EXPECT_EQ(load.EntriesMaxOverMean(), 0);
  load.AddChain(std::vector<std::uint64_t>{7});
  EXPECT_DOUBLE_EQ(load.EntriesMaxOverMean(), 4.0);
}

}  // namespace
}  // namespace kvfabric
