#pragma once

// GrpcCacheService: Cache for generic clients. Sessions, look-ups, bulk Get and Put.
//
// Owned by main; what it borrows outlives it and the gRPC server it is registered with. gRPC's
// threads only enqueue; requests run on `executor`. Get sends pinned memory as external slices
// (the pin goes when gRPC has written it); Put reads blocks where they lie in the received
// slices. Bounded: sessions, bytes of replies and of puts under way, deadlines. Over the byte
// bounds Get answers a miss and Put NO_SPACE, both counted.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/cluster/fabric.h"
#include "agent/service/authentication.h"
#include "common/executor.h"
#include "common/metrics.h"

namespace grpc {
class Service;
}

namespace kvfabric {

class GrpcCacheService {
 public:
  struct Options {
    std::string node_name;
    TenantOfToken tenant_of_token;
    std::size_t max_sessions = 4096;
    std::chrono::milliseconds lease{10'000};             // told to clients
    std::chrono::milliseconds default_deadline{1'000};   // when the client names none
    std::chrono::milliseconds longest_deadline{10'000};  // also bounds a shutdown
    std::size_t max_reply_bytes = std::size_t{64} << 20U;
    std::size_t max_inflight_bytes = std::size_t{256} << 20U;  // replies; the same again for puts
  };
  struct Environment {
    Fabric* fabric = nullptr;
    Executor* executor = nullptr;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  GrpcCacheService(Options options, const Environment& environment);
  // After the server has stopped. Sessions that it did not come to end are the Fabric's to end.
  ~GrpcCacheService();
  GrpcCacheService(const GrpcCacheService&) = delete;  // calls point to it
  GrpcCacheService& operator=(const GrpcCacheService&) = delete;

  grpc::Service& service();
  // Until then every call answers UNAVAILABLE.
  void SetServing(bool serving);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace kvfabric
