#include "agent/cluster/peer_set.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/log.h"

namespace kvfabric {

// Links that nobody uses any more, until the background executor destroys them.
struct PeerSet::Graveyard {
  Mutex mu;
  CondVar changed;
  std::vector<std::unique_ptr<PeerLink>> dead GUARDED_BY(mu);
  std::size_t alive GUARDED_BY(mu) = 0;  // links made and not yet destroyed
};

namespace {

bool SameEndpoint(const PeerAddress& a, const PeerAddress& b) {
  return a.agent_uid == b.agent_uid && a.host == b.host && a.grpc_port == b.grpc_port;
}

}  // namespace

PeerSet::PeerSet(Environment environment, PeerSetOptions options)
    : environment_(environment), options_(options), graveyard_(std::make_shared<Graveyard>()) {}

PeerSet::~PeerSet() { CloseAll(); }

LinkRef PeerSet::Connect(const PeerAddress& address) {
  std::unique_ptr<PeerLink> link = environment_.connector->Connect(address);
  if (link == nullptr) return nullptr;
  const std::shared_ptr<Graveyard> graveyard = graveyard_;
  {
    MutexLock lock(graveyard->mu);
    ++graveyard->alive;
  }
  return LinkRef(link.release(), [graveyard](PeerLink* dead) {
    MutexLock lock(graveyard->mu);
    graveyard->dead.emplace_back(dead);
    graveyard->changed.NotifyAll();
  });
}

void PeerSet::Bury() {
  std::vector<std::unique_ptr<PeerLink>> dead;
  {
    MutexLock lock(graveyard_->mu);
    dead.swap(graveyard_->dead);
  }
  const std::size_t buried = dead.size();
  dead.clear();  // their completions run now, with no lock held
  MutexLock lock(graveyard_->mu);
  graveyard_->alive -= buried;
  graveyard_->changed.NotifyAll();
}

void PeerSet::SetListener(Listener listener) {
  MutexLock lock(mu_);
  listener_ = std::move(listener);
}

void PeerSet::SetPeers(const std::vector<PeerAddress>& peers) {
  std::vector<std::pair<NodeIndex, PeerAddress>> fresh;
  std::vector<LinkRef> dropped;  // let go without the lock
  {
    MutexLock lock(mu_);
    if (closed_) return;
    std::unordered_set<NodeIndex> wanted;
    for (const PeerAddress& address : peers) {
      const NodeIndex node = environment_.names->Intern(address.node_name);
      if (node == kNoNode || !wanted.insert(node).second) continue;
      const auto found = peers_.find(node);
      if (found == peers_.end() || !SameEndpoint(found->second.address, address)) {
        fresh.emplace_back(node, address);
      }
    }
    for (auto at = peers_.begin(); at != peers_.end();) {
      if (wanted.contains(at->first)) {
        ++at;
        continue;
      }
      at->second.up_gauge->Set(0);
      dropped.push_back(std::move(at->second.link));
      at = peers_.erase(at);
    }
  }
  for (const auto& [node, address] : fresh) {
    LinkRef link = Connect(address);
    Gauge& gauge = environment_.metrics->GetGauge("kvfabric_cluster_peer_up",
                                                  "1 while the session to a peer is up.",
                                                  {{"peer", address.node_name}});
    MutexLock lock(mu_);
    if (closed_) {
      dropped.push_back(std::move(link));
      continue;
    }
    Peer& peer = peers_[node];
    dropped.push_back(std::exchange(peer.link, std::move(link)));
    peer.address = address;
    peer.linked_at = environment_.clock->Now();
    peer.backoff = options_.first_backoff;
    peer.up_gauge = &gauge;
  }
}

LinkRef PeerSet::Link(NodeIndex peer) const {
  MutexLock lock(mu_);
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.link == nullptr) return nullptr;
  return found->second.link->up() ? found->second.link : nullptr;
}

std::vector<std::pair<NodeIndex, LinkRef>> PeerSet::UpLinks() const {
  MutexLock lock(mu_);
  std::vector<std::pair<NodeIndex, LinkRef>> links;
  for (const auto& [node, peer] : peers_) {
    if (peer.link != nullptr && peer.link->up()) links.emplace_back(node, peer.link);
  }
  return links;
}

std::size_t PeerSet::size() const {
  MutexLock lock(mu_);
  return peers_.size();
}

void PeerSet::Tick() {
  const Clock::TimePoint now = environment_.clock->Now();
  std::vector<std::pair<NodeIndex, bool>> changed;
  std::vector<std::pair<NodeIndex, PeerAddress>> down;
  Listener listener;
  {
    MutexLock lock(mu_);
    if (closed_) return;
    listener = listener_;
    for (auto& [node, peer] : peers_) {
      const bool up = peer.link != nullptr && peer.link->up();
      const std::uint64_t boot_epoch = up ? peer.link->identity().boot_epoch : 0;
      if (up != peer.was_up || (up && boot_epoch != peer.boot_epoch)) {
        changed.emplace_back(node, up);
        peer.up_gauge->Set(up ? 1 : 0);
        // A link that was up has its own time to come back before it is replaced.
        peer.linked_at = now;
      }
      peer.was_up = up;
      if (up) {
        peer.boot_epoch = boot_epoch;
        peer.backoff = options_.first_backoff;
      } else if (now - peer.linked_at >= peer.backoff) {
        peer.linked_at = now;
        peer.backoff = std::min(peer.backoff * 2, options_.last_backoff);
        down.emplace_back(node, peer.address);
      }
    }
  }
  for (const auto& [node, up] : changed) {
    LogInfo(up ? "peer up" : "peer down", {{"peer", environment_.names->Name(node)}});
    if (listener) listener(node, up);
  }
  for (const auto& [node, address] : down) {
    LinkRef link = Connect(address);  // the old one is let go at the end of this block
    MutexLock lock(mu_);
    const auto found = peers_.find(node);
    if (found != peers_.end() && SameEndpoint(found->second.address, address)) {
      found->second.link.swap(link);
    }
  }
  std::shared_ptr<Gate::Pass> pass = gate_.EnterShared();
  bool any = false;
  {
    MutexLock lock(graveyard_->mu);
    any = !graveyard_->dead.empty();
  }
  // Refused: the next tick tries again.
  if (any && pass) static_cast<void>(environment_.background->Submit([this, pass] { Bury(); }));
}

void PeerSet::CloseAll() {
  std::unordered_map<NodeIndex, Peer> peers;
  {
    MutexLock lock(mu_);
    closed_ = true;
    peers.swap(peers_);
  }
  peers.clear();
  gate_.CloseAndWait();
  MutexLock lock(graveyard_->mu);
  while (graveyard_->alive > 0) {
    if (graveyard_->dead.empty()) {
      graveyard_->changed.Wait(graveyard_->mu);
      continue;
    }
    graveyard_->mu.Unlock();
    Bury();
    graveyard_->mu.Lock();
  }
}

}  // namespace kvfabric
