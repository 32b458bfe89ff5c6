#include "agent/cluster/replica_targets.h"

#include <algorithm>

namespace kvfabric {

std::vector<NodeIndex> ReplicaTargets(const PoolRouting& routing, const PeerSet& peers,
                                      SlotIndex slot, std::span<const NodeIndex> holders,
                                      std::uint32_t replicas) {
  std::vector<NodeIndex> targets;
  if (slot >= routing.map().slot_count) return targets;
  std::vector<NodeIndex> with_copy(holders.begin(), holders.end());
  const std::vector<NodeIndex> owners = routing.OwnersOf(slot);
  for (const bool other_domain : {true, false}) {
    for (const NodeIndex owner : owners) {
      if (with_copy.size() >= replicas) return targets;
      if (std::ranges::find(with_copy, owner) != with_copy.end()) continue;
      const bool near = std::ranges::any_of(
          with_copy, [&](NodeIndex holder) { return routing.SameZone(owner, holder); });
      if (other_domain && near) continue;
      if (owner != routing.self() && !peers.Up(owner)) continue;
      targets.push_back(owner);
      with_copy.push_back(owner);
    }
  }
  return targets;
}

}  // namespace kvfabric
