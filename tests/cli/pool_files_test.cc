#include "cli/pool_files.h"

#include <gtest/gtest.h>

#include "tests/fakes/temp_dir.h"

namespace kvfabric::cli {
namespace {

std::string PoolYaml(const std::string& name, const std::string& capacity) {
  return "apiVersion: kvfabric.io/v1alpha1\nkind: KVCachePool\nmetadata: {name: " + name +
         "}\nspec: {tiers: [{name: dram, type: DRAM, capacityPerNode: " + capacity + "}]}\n";
}

TEST(PoolFiles, PoolsThatWereAppliedCountBesideTheNewOnes) {
  TempDir temp;
  const FabricDirectory directory = *FabricDirectory::At((temp.path() / "f").string());
  EXPECT_TRUE(WithAppliedPools(directory, {})->empty()) << "no fabric yet";
  ASSERT_TRUE(directory.Make().ok());
  const std::string both = PoolYaml("a", "64Mi") + "---\n" + PoolYaml("b", "32Mi");
  ASSERT_TRUE(SavePoolFile(directory, "default/a", both).ok());
  ASSERT_TRUE(SavePoolFile(directory, "default/b", both).ok());

  auto next = ReadPools(PoolYaml("b", "128Mi") + "---\n" + PoolYaml("c", "8Mi"), "next.yaml");
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  const auto all = WithAppliedPools(directory, *next);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  std::uint64_t bytes = 0;
  for (const PoolDocument& pool : *all) bytes += pool.dram_bytes_per_node;
  EXPECT_EQ(all->size(), 3U);
  EXPECT_EQ(bytes, std::uint64_t{64 + 128 + 8} << 20U) << "b as it is to be, not as it was";
  EXPECT_GT(ArenaBytesFor(*all), ArenaBytesFor(*next));
}

}  // namespace
}  // namespace kvfabric::cli
