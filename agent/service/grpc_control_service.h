#pragma once

// GrpcControlService: the operator's stream to this agent. Orders go down to ControlPlanePort,
// one after the other, each answered by an acknowledgement; hello and heartbeats go up.
//
// Owned by main; what it borrows outlives it and the gRPC server it is registered with. gRPC's
// threads only enqueue: orders run on `executor`, in the order of the stream. Bounded: the next
// order is read when the last is done; a heartbeat that finds its forerunner unsent is skipped.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/cluster/control_plane_port.h"
#include "agent/service/agent_certificate.h"
#include "agent/service/authentication.h"
#include "agent/service/clear_pools.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/timer.h"

namespace grpc {
class Service;
}

namespace kvfabric {

struct AgentHealth {
  bool recovering = false;  // the arena is not prefaulted yet
  bool ready = false;       // the self-test passes
  std::string not_ready_reason;
};

class GrpcControlService {
 public:
  struct Options {
    std::string version;
    std::string zone;
    std::uint64_t arena_bytes = 0;
    TenantOfToken tenant_of_token;
    std::function<AgentHealth()> health;  // any thread, short
  };
  struct Environment {
    ControlPlanePort* port = nullptr;
    Executor* executor = nullptr;
    Timer* timer = nullptr;
    MetricsRegistry* metrics = nullptr;
    // Null: in clear, and the caller's token says who it is. Otherwise the caller must prove to be
    // the operator or an admin.
    AgentCertificate* certificate = nullptr;
    std::function<void()> on_certificate = nullptr;  // one was taken; may be none
    ClearPools* clear_pools = nullptr;               // told of each list of pools; may be null
  };

  GrpcControlService(Options options, const Environment& environment);
  ~GrpcControlService();                                   // after the server has stopped
  GrpcControlService(const GrpcControlService&) = delete;  // streams point to it
  GrpcControlService& operator=(const GrpcControlService&) = delete;

  grpc::Service& service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace kvfabric
