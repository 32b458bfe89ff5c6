#pragma once

// PeerSet: the links to all peers that any pool's map names, and this node's own judgement of them
// (link up or not); operator states play no part.
//
// Owned by FabricNode; any thread. Links are made by the PeerConnector when a map names a peer,
// replaced after having been down for the back-off (1, 2, 4, 8 s), and destroyed on the background
// executor once the last caller let go, never on a caller's thread. CloseAll() waits for that; it
// must run before the executor goes.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/cluster/gate.h"
#include "agent/cluster/node_names.h"
#include "agent/cluster/peer_link.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/mutex.h"

namespace kvfabric {

using LinkRef = std::shared_ptr<PeerLink>;

struct PeerSetOptions {
  std::chrono::milliseconds first_backoff{1000};
  std::chrono::milliseconds last_backoff{8000};
};

class PeerSet {
 public:
  struct Environment {
    const Clock* clock = nullptr;
    Executor* background = nullptr;
    PeerConnector* connector = nullptr;
    NodeNames* names = nullptr;
    MetricsRegistry* metrics = nullptr;
  };
  // A peer went up or down, or came up as another run. Called from Tick's thread.
  using Listener = std::function<void(NodeIndex peer, bool up)>;

  PeerSet(Environment environment, PeerSetOptions options);
  ~PeerSet();
  PeerSet(const PeerSet&) = delete;  // owns links
  PeerSet& operator=(const PeerSet&) = delete;

  // The peers of all maps together, this node left out. Links to others are closed; a changed
  // address or agent UID makes a new link.
  void SetPeers(const std::vector<PeerAddress>& peers) EXCLUDES(mu_);
  void SetListener(Listener listener) EXCLUDES(mu_);

  // Null when there is no such peer or it is down.
  LinkRef Link(NodeIndex peer) const EXCLUDES(mu_);
  bool Up(NodeIndex peer) const { return Link(peer) != nullptr; }
  // Peers that are up now.
  std::vector<std::pair<NodeIndex, LinkRef>> UpLinks() const EXCLUDES(mu_);
  std::size_t size() const EXCLUDES(mu_);

  // Every 50 ms or so: notices changes, reconnects, frees closed links.
  void Tick() EXCLUDES(mu_);
  void CloseAll() EXCLUDES(mu_);

 private:
  struct Peer {
    PeerAddress address;
    LinkRef link;
    Clock::TimePoint linked_at{};
    std::chrono::milliseconds backoff{0};
    bool was_up = false;
    std::uint64_t boot_epoch = 0;  // when last up
    Gauge* up_gauge = nullptr;
  };
  struct Graveyard;

  LinkRef Connect(const PeerAddress& address);
  void Bury();

  const Environment environment_;
  const PeerSetOptions options_;
  const std::shared_ptr<Graveyard> graveyard_;
  Gate gate_;

  mutable Mutex mu_;
  std::unordered_map<NodeIndex, Peer> peers_ GUARDED_BY(mu_);
  Listener listener_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
