#pragma once

// GrpcPeerConnector makes links to peers: a gRPC session with keepalives, and bulk connections.
//
// Owned by main; links are owned by whoever asked for them and go before the connector. A link
// keeps its session up: it reconnects 100 ms to 1 s after a loss, each time over a connection of
// its own. It judges the peer by itself: down at the end of the stream or after `down_after`
// without an answer to a keepalive; then what was asked fails with UNAVAILABLE. Keepalives are
// sent and judged on a thread that does nothing else. Bounds: requests under way per link.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "agent/service/bulk_client.h"
#include "common/certificate.h"
#include "common/metrics.h"
#include "common/timer.h"
#include "transport/event_loop.h"

namespace kvfabric {

class GrpcPeerConnector final : public PeerConnector {
 public:
  struct Options {
    PeerIdentity self;
    std::function<std::string()> token;  // the admin tenant's, as of now; not used with `tls`
    TlsSource tls = nullptr;             // none: in clear
    std::chrono::milliseconds keepalive{250};
    std::chrono::milliseconds down_after{1'000};
    std::chrono::milliseconds first_retry{100};
    std::chrono::milliseconds last_retry{1'000};
    std::size_t max_requests = 65'536;
    BulkClient::Options bulk;
  };
  struct Environment {
    std::vector<EventLoop*> loops;
    Timer* timer = nullptr;  // deadlines and retries
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };
  struct Shared;

  GrpcPeerConnector(Options options, Environment environment);
  ~GrpcPeerConnector() override;  // waits until gRPC has let go of every session

  std::unique_ptr<PeerLink> Connect(const PeerAddress& address) override;

 private:
  const std::shared_ptr<Shared> shared_;
};

}  // namespace kvfabric
