#pragma once

// GrpcAgentDialer opens kvfabric.v1.Control streams to agents. In part 1 in clear with a bearer
// token (loopback only); part 2 puts mTLS under it.
//
// One thread dials and sends; gRPC's threads only take over bytes and tell the listener. The
// destructor waits until every stream has ended.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "operator/controllers/agent_link.h"

namespace kvfabric {

// What a dialer and its streams share.
struct AgentStreams {
  explicit AgentStreams(std::string token) : admin_token(std::move(token)) {}
  const std::string admin_token;
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
  explicit GrpcAgentDialer(std::string admin_token);
  ~GrpcAgentDialer() override;
  GrpcAgentDialer(const GrpcAgentDialer&) = delete;  // counts its streams
  GrpcAgentDialer& operator=(const GrpcAgentDialer&) = delete;

  std::unique_ptr<AgentLink> Dial(const AgentTarget& target, const Session& session,
                                  std::shared_ptr<AgentLinkListener> listener) override;

 private:
  const std::shared_ptr<AgentStreams> streams_;
};

}  // namespace kvfabric
