#pragma once

// MemoryNetwork: peers of one process that reach each other without sockets. Links made by it obey
// the contract of PeerLink; tests cut, stop and disturb them.
//
// A call runs on the network's own threads, never inside the caller's, so that what would deadlock
// or race over real links does so here. Any thread may call; the network outlives all links.
//   Kill(node)   as SIGKILL: its sessions end, calls to it and from it answer UNAVAILABLE.
//   Stop(node)   as SIGSTOP: calls to it wait (until their deadline); links to it are down after
//                1 s. Resume(node) lets them through.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "common/executor.h"
#include "common/timer.h"

namespace kvfabric {

// What happens to one announcement.
enum class AnnounceFault {
  kNone,
  kLoseRequest,  // never arrives; the sender sees a failure
  kLoseReply,    // arrives; the sender sees a failure
  kDuplicate,    // arrives twice
  kLate,         // the sender sees a failure, and it arrives after the next one
};

class MemoryNetwork {
 public:
  explicit MemoryNetwork(const Clock& clock = Clock::System());
  ~MemoryNetwork();
  MemoryNetwork(const MemoryNetwork&) = delete;  // links point to it
  MemoryNetwork& operator=(const MemoryNetwork&) = delete;

  // `handler` until Kill. The port is the node's address; any number.
  void Register(const PeerIdentity& identity, std::uint16_t port, PeerHandler* handler);
  // Returns when no call is inside its handler, and none of its own holds anything of it.
  // Unregistered nodes are ignored.
  void Kill(const std::string& node);
  void Stop(const std::string& node);
  void Resume(const std::string& node);

  // Decides about each announcement; null = none. Before the first link.
  void SetAnnounceFault(std::function<AnnounceFault()> fault);
  // Of all calls that reached a handler, by name ("announce", "locate", "lease", "fetch", ...).
  std::uint64_t calls(const std::string& name) const;

  // The links of `from`. Lives as long as the network.
  PeerConnector* ConnectorOf(const PeerIdentity& from);

 private:
  class Link;
  class Connector;
  struct Flight;
  struct Node;
  struct Core;

  const std::unique_ptr<Core> core_;
};

}  // namespace kvfabric
