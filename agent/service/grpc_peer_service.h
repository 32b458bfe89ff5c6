#pragma once

// GrpcPeerService: answers the sessions that peers open to this agent.
//
// Owned by main; what it borrows outlives it and the gRPC server it is registered with. gRPC's
// threads only enqueue: a session's requests run one after the other on `executor`, keepalives on
// a thread that does nothing else. The end of the stream ends the session and its leases. Bounds:
// requests that wait per session (more are answered RESOURCE_EXHAUSTED), replies that wait (more
// end the session), an opener that is silent for `silence` is ended.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/cluster/peer_link.h"
#include "agent/service/authentication.h"
#include "agent/service/bulk_server.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/timer.h"

namespace grpc {
class Service;
}

namespace kvfabric {

class GrpcPeerService {
 public:
  struct Options {
    PeerIdentity self;
    TenantOfToken tenant_of_token;
    // Callers prove which agent they are by certificate; tokens are not looked at.
    bool certificates = false;
    std::size_t max_waiting = 1024;
    std::size_t max_replies = 8192;
    std::chrono::milliseconds silence{10'000};
  };
  struct Environment {
    PeerHandler* handler = nullptr;
    BulkServer* bulk = nullptr;
    Executor* executor = nullptr;
    Timer* timer = nullptr;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  GrpcPeerService(Options options, const Environment& environment);
  ~GrpcPeerService();                                // after the server has stopped
  GrpcPeerService(const GrpcPeerService&) = delete;  // streams point to it
  GrpcPeerService& operator=(const GrpcPeerService&) = delete;

  grpc::Service& service();
  // Until then sessions are refused with UNAVAILABLE.
  void SetServing(bool serving);
  std::size_t sessions() const;

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace kvfabric
