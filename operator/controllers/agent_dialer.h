#pragma once

// GrpcAgentDialer opens kvfabric.v1.Control streams to agents, over mTLS: the agent must prove to
// be the node it is dialled as, or have the bootstrap certificate. Without a source of certificates
// in clear with a bearer token (loopback only).
//
// One thread dials and sends; gRPC's threads only take over bytes and tell the listener. The
// destructor waits until every stream has ended.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/certificate.h"
#include "common/mutex.h"
#include "operator/controllers/agent_link.h"

namespace kvfabric {

class HandshakeWatch;
class MetricsRegistry;

// What a dialer and its streams share.
struct AgentStreams {
  AgentStreams(std::string token, TlsSource source)
      : admin_token(std::move(token)), tls(std::move(source)) {}
  const std::string admin_token;
  const TlsSource tls;  // none: in clear
  Mutex mu;
  CondVar changed;
  std::size_t open GUARDED_BY(mu) = 0;
  // Streams that gRPC is done with, until the next is opened, or to the end. The last channel to go
  // joins gRPC's callback threads, so none may go on one of them (in gRPC 1.51 that corrupts the
  // heap).
  std::vector<std::shared_ptr<void>> ended GUARDED_BY(mu);
};

class GrpcAgentDialer final : public AgentDialer {
 public:
  // `metrics`: counts refused handshakes; may be null.
  explicit GrpcAgentDialer(std::string admin_token, TlsSource tls = nullptr,
                           MetricsRegistry* metrics = nullptr);
  ~GrpcAgentDialer() override;
  GrpcAgentDialer(const GrpcAgentDialer&) = delete;  // counts its streams
  GrpcAgentDialer& operator=(const GrpcAgentDialer&) = delete;

  std::unique_ptr<AgentLink> Dial(const AgentTarget& target, const Session& session,
                                  std::shared_ptr<AgentLinkListener> listener) override;

 private:
  const std::unique_ptr<HandshakeWatch> handshakes_;  // null without metrics
  const std::shared_ptr<AgentStreams> streams_;
};

}  // namespace kvfabric
