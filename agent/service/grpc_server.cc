#include "agent/service/grpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/socket.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "api/grpc_tls.h"
#include "common/unique_fd.h"

namespace kvfabric {

namespace {

// gRPC says only that it could not bind. Binding once ourselves gives the reason.
Status ProbeAddress(const ListenAddress& listen) {
  sockaddr_storage address{};
  socklen_t length = 0;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      ::inet_pton(AF_INET, listen.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(listen.port);
    length = sizeof(sockaddr_in);
  } else if (auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
             ::inet_pton(AF_INET6, listen.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(listen.port);
    length = sizeof(sockaddr_in6);
  } else {
    return InvalidArgument("grpc server: listen on " + FormatAddress(listen) +
                           ": not a numeric address");
  }
  const UniqueFd probe(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!probe || ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(probe.get(), 1) != 0) {
    const int cause = errno;
    const std::string who = "grpc server: listen on " + FormatAddress(listen);
    if (cause != EADDRINUSE) return ErrnoStatus(cause, who);
    return FailedPrecondition(
        who + ": the address is in use: stop what listens there, or choose another address");
  }
  return Status::Ok();
}

}  // namespace

struct GrpcServer::State {
  std::shared_ptr<grpc::ServerCredentials> credentials;  // outlives the server
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  bool stopped = false;
};

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const Options& options,
                                                      const std::vector<grpc::Service*>& services) {
  static std::once_flag health_once;
  std::call_once(health_once, [] { grpc::EnableDefaultHealthCheckService(true); });

  KVF_RETURN_IF_ERROR(ProbeAddress(options.listen));
  auto state = std::make_unique<State>();
  grpc::ServerBuilder builder;
  state->credentials =
      options.tls ? MakeServerCredentials(options.tls) : grpc::InsecureServerCredentials();
  builder.AddListeningPort(FormatAddress(options.listen), state->credentials, &state->port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16'777'215);
  // A client that is gone without a FIN is noticed, and its session's leases end.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const int max_message = static_cast<int>(options.max_message_bytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(max_message);
  grpc::ResourceQuota quota("kvfabric-agent");
  quota.Resize(options.memory_quota_bytes);
  builder.SetResourceQuota(quota);
  for (grpc::Service* service : services) builder.RegisterService(service);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || state->port <= 0) {
    return FailedPrecondition("grpc server: listen on " + FormatAddress(options.listen) +
                              ": could not bind: is the port in use?");
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(state)));
}

GrpcServer::GrpcServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

GrpcServer::~GrpcServer() { Stop(std::chrono::milliseconds(0)); }

std::uint16_t GrpcServer::port() const { return static_cast<std::uint16_t>(state_->port); }

void GrpcServer::SetServing(bool serving) {
  if (auto* health = state_->server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void GrpcServer::Stop(std::chrono::milliseconds patience) {
  if (std::exchange(state_->stopped, true)) return;
  state_->server->Shutdown(std::chrono::system_clock::now() + patience);
  state_->server->Wait();
}

}  // namespace kvfabric
