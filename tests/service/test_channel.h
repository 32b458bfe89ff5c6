#pragma once

// What the gRPC tests share: a channel of its own to a port, a context with a token, and one
// token table.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace kvfabric
