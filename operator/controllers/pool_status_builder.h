#pragma once

// What a pool's status should say, from what is known. Pure, so that the same facts give the same
// bytes and an idle pool is not written.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "operator/controllers/agent_registry.h"
#include "operator/controllers/member_tracker.h"
#include "operator/specs/pool_spec.h"
#include "placement/shard_map.h"

namespace kvfabric {

struct PoolFacts {
  const Pool* pool = nullptr;
  const ShardMap* map = nullptr;  // null = none yet
  const std::vector<TrackedMember>* members = nullptr;
  const AgentRegistry* registry = nullptr;
  // ConfigValid=False because of: Invalid, NotBuilt, Oversubscribed; "" = valid.
  std::string config_reason;
  std::string config_message;
  std::uint64_t term = 0;
  std::uint32_t desired = 0;
  std::uint32_t migrating = 0;  // byte entries that changed hands with the stored map
  RebalanceStatus rebalance;    // state is filled in
  // Silent nodes that are held because so many fell together; empty = none.
  std::set<std::string> mass_failure;
  std::vector<UnstableNodeStatus> unstable_nodes;
  NodeLossStatus loss;  // recovered_at is filled in
  std::int64_t now_unix_us = 0;
};

// Agents that serve have applied the map of this term and epoch.
bool HasConverged(const std::vector<TrackedMember>& members, const ShardMap& map,
                  std::uint64_t term, const AgentRegistry& registry);
// The highest epoch any agent reports for the pool.
std::uint64_t HighestEpoch(const std::string& pool_uid, const AgentRegistry& registry);

PoolStatus BuildPoolStatus(const PoolFacts& facts);

// What of two statuses must be written at once: a condition that flips, or a newer generation.
bool MustWriteNow(const PoolStatus& stored, const PoolStatus& wanted);

}  // namespace kvfabric
