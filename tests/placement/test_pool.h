#pragma once

// TestPool: a pool whose members a test adds, removes and changes, planned again and again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "placement/planner.h"
#include "placement/sticky_quota.h"

namespace kvfabric {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;

inline PlanMember TestMember(int number, const std::string& zone = "",
                             std::uint64_t bytes = 64 * kGiB) {
  char name[32];
  std::snprintf(name, sizeof(name), "node-%04d", number);
  PlanMember wanted;
  wanted.member.node_name = name;
  wanted.member.agent_uid = std::string("uid-") + name;
  wanted.member.address = "10.0.0." + std::to_string(number % 250);
  wanted.member.grpc_port = 7070;
  wanted.member.bulk_port = 7071;
  wanted.member.zone = zone;
  wanted.member.weight = bytes;
  return wanted;
}

// Entries each member has in columns [first, end).
inline std::vector<std::uint32_t> Loads(const ShardMap& map, std::uint32_t first,
                                        std::uint32_t end) {
  std::vector<std::uint32_t> loads(map.members.size(), 0);
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    for (std::uint32_t c = first; c < end; ++c) {
      const MemberIndex owner = map.Owners(slot)[c];
      if (owner != kNoOwner) ++loads[owner];
    }
  }
  return loads;
}

inline std::map<std::string, std::uint32_t> LoadsByName(const ShardMap& map, std::uint32_t first,
                                                        std::uint32_t end) {
  const std::vector<std::uint32_t> loads = Loads(map, first, end);
  std::map<std::string, std::uint32_t> named;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    named[map.members[i].node_name + "/" + map.members[i].agent_uid] = loads[i];
  }
  return named;
}

inline std::uint32_t Spread(const std::vector<std::uint32_t>& loads) {
  const auto [low, high] = std::minmax_element(loads.begin(), loads.end());
  return *high - *low;
}

// Fewest byte entries any plan must move to get from the loads of `before` to those of `after`.
inline std::uint32_t LowerBound(const ShardMap& before, const ShardMap& after) {
  const auto old_loads = LoadsByName(before, 0, before.replicas);
  std::uint32_t bound = 0;
  for (const auto& [name, load] : LoadsByName(after, 0, after.replicas)) {
    const auto found = old_loads.find(name);
    const std::uint32_t had = found == old_loads.end() ? 0 : found->second;
    if (load > had) bound += load - had;
  }
  return bound;
}

class TestPool {
 public:
  explicit TestPool(std::uint32_t replicas, std::uint32_t slot_count = kRedisSlots) {
    input.pool_uid = "pool-1";
    input.replicas = replicas;
    input.slot_count = slot_count;
    input.balance_slots_max = slot_count;
  }

  // `zones` = 0: no zone known.
  void AddMembers(int count, int zones = 0) {
    for (int i = 0; i < count; ++i, ++next_number) {
      const std::string zone = zones > 0 ? "zone-" + std::to_string(next_number % zones) : "";
      input.members.push_back(TestMember(next_number, zone));
    }
  }
  PlanMember& operator[](std::size_t i) { return input.members[i]; }

  // Plans on top of the last plan and keeps the result as the pool's map.
  PlanResult Plan() {
    const ShardMap before = map;
    input.previous = planned ? &before : nullptr;
    Result<PlanResult> result = planner.Plan(input);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->map.Validate().ToString(), "OK");
    map = result->map;
    planned = true;
    input.previous = nullptr;
    return *std::move(result);
  }

  MemberIndex IndexOf(std::size_t i) const {
    const Member& member = input.members[i].member;
    return map.FindMember(member.node_name, member.agent_uid).value_or(kNoOwner);
  }

  StickyQuota planner;
  PlanInput input;
  ShardMap map;
  bool planned = false;
  int next_number = 0;
};

}  // namespace kvfabric
