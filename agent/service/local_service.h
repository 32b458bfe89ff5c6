#pragma once

// LocalService: clients of this node over the Unix socket, and over framed TCP in clear where that
// is allowed (the bulk port hands such connections over). Protocol: docs/formats/local.md.
//
// Owned by main; what it borrows outlives it, and the loops outlive Fabric. Any thread may make
// and destroy it; each connection lives on one loop. The tenant comes from the token only, and
// only that tenant's memfds are ever handed out. A connection that ends, however, ends its
// session and so its leases at once. Bounds: connections, requests in flight a connection, bytes
// of blocks on their way in over TCP, staging bytes a client; what is over is refused or waits.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/service/authentication.h"
#include "agent/tier/dram_arena.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/status.h"
#include "transport/event_loop.h"
#include "transport/frame_connection.h"
#include "transport/listener.h"

namespace kvfabric {

class LocalConnections;

class LocalService final : public ArenaObserver {
 public:
  struct Options {
    std::string socket_path{};  // empty = no Unix socket
    bool tcp_clients = true;    // HELLO over TCP: local mode, pools without transport security
    std::chrono::milliseconds lease{10'000};
    std::size_t max_connections = 1'024;
    std::size_t max_in_flight = 256;                            // a connection
    std::uint64_t max_staging_bytes = std::uint64_t{1} << 30U;  // a connection
    std::size_t max_inline_bytes = std::size_t{256} << 20U;     // all connections
    std::chrono::milliseconds hello_timeout{5'000};
    std::chrono::milliseconds tcp_idle_timeout{60'000};
  };
  struct Environment {
    Fabric* fabric = nullptr;
    DramArena* arena = nullptr;  // this becomes its observer
    TenantOfToken tenant_of;
    std::vector<EventLoop*> loops;    // at least one
    Executor* put_workers = nullptr;  // copy and hash of puts
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  // FAILED_PRECONDITION when another agent listens on the path.
  static Result<std::unique_ptr<LocalService>> Start(Options options, Environment environment);
  ~LocalService() override;                    // closes all connections, ends their sessions
  LocalService(const LocalService&) = delete;  // connections point to its state
  LocalService& operator=(const LocalService&) = delete;

  // For the acceptor of the bulk port, on the connection's loop: a connection whose first frame
  // is a HELLO. An error ends it.
  Status TakeOver(FrameConnection& connection, const ReceivedFrame& first);
  std::size_t connections() const;

  // ArenaObserver, under the arena's lock.
  void OnMemfd(const std::string& tenant, const MemfdRef& memfd) override;
  void OnClosing(std::uint64_t memfd_id, const std::vector<std::uint64_t>& sessions) override;

 private:
  LocalService(DramArena& arena, std::shared_ptr<LocalConnections> connections);
  static void WatchLaggards(EventLoop& loop, const std::weak_ptr<LocalConnections>& connections);

  DramArena& arena_;
  const std::shared_ptr<LocalConnections> connections_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace kvfabric
