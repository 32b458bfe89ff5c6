#pragma once

// Pure functions between a pool's spec and the agents: what an agent is told of a pool, and whether
// pools together ask for more than the nodes have.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operator/controllers/agent_link.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

// Nullopt: the pool has no tier this version runs.
std::optional<AgentPoolConfig> ConfigFor(const Pool& pool);

// Pools, oldest first, and the smallest arena of the agents: which pools no longer fit.
// By uid -> text for people.
std::map<std::string, std::string> FindOversubscribed(
    std::vector<std::shared_ptr<const Pool>> pools, std::uint64_t smallest_arena_bytes);

}  // namespace kvfabric
