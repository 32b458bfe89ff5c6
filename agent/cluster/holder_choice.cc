#include "agent/cluster/holder_choice.h"

#include <utility>

namespace kvfabric {

HolderChoice::Peer& HolderChoice::PeerOf(NodeIndex node) {
  const auto [known, fresh] = known_.try_emplace(node);
  Peer& peer = known->second;
  if (!fresh || node == routing_.self()) return peer;
  peer.link = peers_.Link(node);
  if (peer.link == nullptr) return peer;
  peer.far = !routing_.SameZone(node, routing_.self());
  peer.load_bytes = peer.link->peer_state().inflight_bytes;
  return peer;
}

bool HolderChoice::Any(const Directory::Holders& holders) {
  for (const NodeIndex node : holders.span()) {
    if (PeerOf(node).link != nullptr) return true;
  }
  return false;
}

NodeIndex HolderChoice::Choose(const Directory::Holders& holders) {
  NodeIndex best = kNoNode;
  for (const NodeIndex node : holders.span()) {
    const Peer& peer = PeerOf(node);
    if (peer.link == nullptr) continue;
    if (best != kNoNode) {
      const Peer& leader = PeerOf(best);
      if (std::pair(leader.far, leader.load_bytes) <= std::pair(peer.far, peer.load_bytes))
        continue;
    }
    best = node;
  }
  if (best != kNoNode) PeerOf(best).load_bytes += kAssumedBlockBytes;
  return best;
}

}  // namespace kvfabric
