#pragma once

// CapacityCheck: whether pools together ask for more memory than nodes have. Node by node, so that
// pools on different nodes do not compete. The older pool keeps its share: the newer one that does
// not fit beside it gets ConfigValid=False.
//
// On the control loop's thread. Remembers the last answer for as long as nothing it depends on has
// changed, and at most a second.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/controllers/agent_registry.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

struct NodeRoom {
  const NodeFacts* node = nullptr;  // borrowed
  std::uint64_t arena_bytes = 0;    // what its agent has for all pools
};

// Pools that do not fit beside older ones on a node of theirs: by uid -> text for people.
std::map<std::string, std::string> FindOversubscribed(
    std::vector<std::shared_ptr<const Pool>> pools, const std::vector<NodeRoom>& rooms);

class CapacityCheck {
 public:
  using PoolSnapshot =
      std::shared_ptr<const std::map<kube::ObjectName, std::shared_ptr<const Pool>>>;
  using NodeFactsSnapshot =
      std::shared_ptr<const std::map<kube::ObjectName, std::shared_ptr<const NodeFacts>>>;

  // "" = the pool fits.
  std::string Judge(const Pool& pool, const PoolSnapshot& pools, const NodeFactsSnapshot& nodes,
                    const AgentRegistry& registry, Clock::TimePoint now);

 private:
  PoolSnapshot pools_;
  NodeFactsSnapshot nodes_;
  std::size_t agents_ = 0;  // that said how much they have
  Clock::TimePoint checked_{};
  std::map<std::string, std::string> oversubscribed_;
};

}  // namespace kvfabric
