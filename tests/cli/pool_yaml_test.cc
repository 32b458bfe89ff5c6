#include "cli/pool_yaml.h"

#include <gtest/gtest.h>

#include "cli/files.h"

namespace kvfabric::cli {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

constexpr const char* kGood = R"(
apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata: {name: main}
spec:
  tiers:
    - {name: dram, type: DRAM, capacityPerNode: 64Mi}
  tenancy:
    tenants:
      - {name: team-a, namespaces: [a]}
      - {name: team-b, namespaces: [b]}
)";

TEST(PoolYaml, ReadsWhatUpHasToKnow) {
  const auto pools = ReadPools(kGood, "pool.yaml");
  ASSERT_TRUE(pools.ok()) << pools.status().ToString();
  ASSERT_EQ(pools->size(), 1U);
  EXPECT_EQ((*pools)[0].name, "default/main");
  EXPECT_EQ((*pools)[0].dram_bytes_per_node, 64 * kMiB);
  EXPECT_EQ((*pools)[0].tenants, (std::vector<std::string>{"team-a", "team-b"}));
}

TEST(PoolYaml, TheExampleIsGood) {
  const auto text = ReadFile("examples/pool.yaml");
  ASSERT_TRUE(text.ok());
  const auto pools = ReadPools(*text, "examples/pool.yaml");
  EXPECT_TRUE(pools.ok()) << pools.status().ToString();
}

TEST(PoolYaml, NamesEveryFaultOfEveryDocument) {
  const auto pools = ReadPools(R"(
apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata: {name: main}
spec:
  tiers:
    - {name: dram, type: DRAMM, capacityPerNode: lots}
  sharding: {slots: 1000, replicas: 9}
  typo: 1
---
apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata: {name: other}
spec: {tiers: []}
)",
                               "bad.yaml");
  ASSERT_FALSE(pools.ok());
  EXPECT_EQ(pools.status().code(), StatusCode::kInvalidArgument);
  const std::string& text = pools.status().message();
  for (const char* wanted : {"spec.tiers[0].type", "DRAMM", "spec.tiers[0].capacityPerNode", "lots",
                             "spec.sharding.slots", "1000", "spec.sharding.replicas", "spec.typo",
                             "spec.tiers", "nothing was started"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " in:\n" << text;
  }
}

TEST(PoolYaml, RefusesWhatIsNoPool) {
  for (const char* text :
       {"", "[]", "a: b", "{", "kind: Pod\napiVersion: v1\nmetadata: {name: x}\n"}) {
    const auto pools = ReadPools(text, "x.yaml");
    ASSERT_FALSE(pools.ok()) << text;
    EXPECT_NE(pools.status().message().find("x.yaml"), std::string::npos) << text;
  }
  const auto twice = ReadPools(std::string(kGood) + "---" + kGood, "x.yaml");
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.status().message().find("stands twice"), std::string::npos);
}

TEST(PoolYaml, ArenaHoldsCapacityAndAMemfdForEachTenant) {
  for (const std::uint64_t capacity : {kMiB, 64 * kMiB, 4096 * kMiB}) {
    for (std::size_t tenants = 0; tenants < 40; tenants += 13) {
      PoolDocument pool;
      pool.dram_bytes_per_node = capacity;
      for (std::size_t i = 0; i < tenants; ++i) pool.tenants.push_back("t" + std::to_string(i));
      const std::uint64_t arena = ArenaBytesFor({pool});
      const std::uint64_t memfd = std::max(kMiB, std::min(64 * kMiB, arena / 16));
      EXPECT_GE(arena, capacity + capacity / 4 + (tenants + 1) * memfd)
          << capacity << " " << tenants;
    }
  }
}

}  // namespace
}  // namespace kvfabric::cli
