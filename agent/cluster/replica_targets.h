#pragma once

// Which owners of a slot should get a copy of a block: those of the slot that are not the writer,
// other failure domains first, until the pool's number of distinct holders is met. Pure but for
// asking whether peers are up; any thread.

#include <span>
#include <vector>

#include "agent/cluster/peer_set.h"
#include "agent/cluster/pool_routing.h"

namespace kvfabric {

// The first owners of `slot` that are up (this node counts as up) and not among `holders`, such
// that holders and targets together are `replicas` nodes; those in failure domains that have no
// copy yet come first, the same ones only when no other owner is left.
std::vector<NodeIndex> ReplicaTargets(const PoolRouting& routing, const PeerSet& peers,
                                      SlotIndex slot, std::span<const NodeIndex> holders,
                                      std::uint32_t replicas);

}  // namespace kvfabric
