#pragma once

// Short ways to name blocks and chains in policy tests.

#include <cstdint>
#include <vector>

#include "agent/policy/eviction_policy.h"

namespace kvfabric {

// A uniform KeyId for a number; 0 stays none().
inline KeyId TestKeyId(std::uint64_t number) {
  KeyId id;
  if (number == 0) return id;
  std::uint64_t mixed = number;
  for (int round = 0; round < 2; ++round) {
    mixed = (mixed ^ (mixed >> 31U)) * 0x9E3779B97F4A7C15ULL;
    StoreLe(id.bytes.data() + 8 * round, mixed ^ (mixed >> 29U));
  }
  return id;
}

inline PolicyBlock TestBlock(std::uint64_t number, std::uint64_t parent, std::uint32_t depth) {
  PolicyBlock block;
  block.id = TestKeyId(number);
  block.parent = TestKeyId(parent);
  block.depth = depth;
  block.size_bytes = 1;
  return block;
}

// Inserts blocks first..first+count-1 as one chain from depth 0.
inline std::vector<PolicyHandle> InsertChain(EvictionPolicy& policy, std::uint64_t first,
                                             std::uint32_t count, std::int64_t now_us) {
  std::vector<PolicyHandle> handles;
  for (std::uint32_t depth = 0; depth < count; ++depth) {
    const std::uint64_t number = first + depth;
    handles.push_back(policy.Insert(TestBlock(number, depth == 0 ? 0 : number - 1, depth), now_us));
  }
  return handles;
}

inline bool AlwaysEvict(const Victim&) { return true; }

// Takes and erases the next victim; none() when there is none.
inline KeyId EvictOne(EvictionPolicy& policy, std::int64_t now_us) {
  const EvictionPolicy::Choice choice = policy.NextVictim(now_us, AlwaysEvict);
  if (choice.outcome != EvictionPolicy::Outcome::kVictim) return {};
  policy.Erase(choice.victim.handle);
  return choice.victim.id;
}

}  // namespace kvfabric
