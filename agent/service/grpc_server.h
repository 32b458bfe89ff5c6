#pragma once

// GrpcServer: one gRPC server on one address, with the health service.
//
// Owned by main. The services are borrowed and outlive it. Bounded: messages of 80 MiB (a block
// of 64 MiB and its envelope), a memory quota for all of gRPC, clients that answer no ping for
// 20 s are dropped. Listens without SO_REUSEPORT, so that a port in use is refused.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/service/agent_config.h"
#include "common/certificate.h"
#include "common/clock.h"
#include "common/status.h"

namespace grpc {
class Service;
}

namespace kvfabric {

class GrpcServer {
 public:
  struct Options {
    ListenAddress listen;
    std::size_t max_message_bytes = std::size_t{80} << 20U;
    std::size_t memory_quota_bytes = std::size_t{512} << 20U;
    TlsSource tls = nullptr;  // none: in clear
  };

  // FAILED_PRECONDITION when the port is taken, with the address in the text.
  static Result<std::unique_ptr<GrpcServer>> Start(const Options& options,
                                                   const std::vector<grpc::Service*>& services);
  ~GrpcServer();                           // Stop with no patience
  GrpcServer(const GrpcServer&) = delete;  // owns a port
  GrpcServer& operator=(const GrpcServer&) = delete;

  std::uint16_t port() const;
  // What the health service answers for the whole server.
  void SetServing(bool serving);
  // Refuses new calls, cancels streams and what is not done after `patience`, waits. Idempotent.
  void Stop(std::chrono::milliseconds patience);

 private:
  struct State;
  explicit GrpcServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvfabric
