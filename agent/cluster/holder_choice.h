#pragma once

// HolderChoice picks the best of a block's holders: up, in our zone, least loaded. One request's
// view: what it already gave to each holder counts as load. One thread at a time.

#include <map>
#include <vector>

#include "agent/cluster/directory.h"
#include "agent/cluster/peer_set.h"
#include "agent/cluster/pool_routing.h"

namespace kvfabric {

class HolderChoice {
 public:
  // Both outlive this.
  HolderChoice(const PeerSet& peers, const PoolRouting& routing)
      : peers_(peers), routing_(routing) {}

  // True when any holder but this node is up.
  bool Any(const Directory::Holders& holders);
  // kNoNode when none is. What is chosen is counted as load.
  NodeIndex Choose(const Directory::Holders& holders);
  LinkRef link(NodeIndex holder) { return PeerOf(holder).link; }

 private:
  struct Peer {
    LinkRef link;  // null when down
    bool far = false;
    std::uint64_t load_bytes = 0;
  };
  // Lengths are not known before the lease: a middling block.
  static constexpr std::uint64_t kAssumedBlockBytes = std::uint64_t{1} << 20U;

  Peer& PeerOf(NodeIndex node);

  const PeerSet& peers_;
  const PoolRouting& routing_;
  std::map<NodeIndex, Peer> known_;
};

}  // namespace kvfabric
