#pragma once

// Between a pool's spec and the agents: what an agent is told of a pool. Pure.

#include <optional>

#include "operator/controllers/agent_link.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

// Nullopt: the pool has no tier this version runs.
std::optional<AgentPoolConfig> ConfigFor(const Pool& pool);

}  // namespace kvfabric
