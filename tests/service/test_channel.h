#pragma once

// What the gRPC tests share: a channel of its own to a port, a context with a token, one token
// table, and a wait for a condition with a deadline.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "tests/fakes/test_seed.h"

namespace kvfabric {

inline std::shared_ptr<grpc::Channel> TestChannel(std::uint16_t port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(80 << 20);
  arguments.SetMaxSendMessageSize(80 << 20);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

inline void SetToken(grpc::ClientContext& context, const std::string& token) {
  context.AddMetadata("authorization", "Bearer " + token);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

// token "token-T" belongs to tenant T.
inline std::optional<std::string> TestTenantOfToken(std::string_view token) {
  constexpr std::string_view kPrefix = "token-";
  if (token.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  return std::string(token.substr(kPrefix.size()));
}

// A value that threads change and tests wait for.
class Tally {
 public:
  void Add(int by = 1) {
    const std::lock_guard<std::mutex> lock(mu_);
    value_ += by;
    changed_.notify_all();
  }
  int value() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return value_;
  }
  // False when `value` was not reached in time.
  bool WaitFor(int value, std::chrono::milliseconds within = std::chrono::milliseconds(5000)) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, within * TimeScale(), [&] { return value_ >= value; });
  }

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  int value_ = 0;
};

}  // namespace kvfabric
