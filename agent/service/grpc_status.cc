#include "agent/service/grpc_status.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string_view>

namespace kvfabric {

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return Status::Ok();
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(StatusCode::kUnauthenticated);
  return {known ? static_cast<StatusCode>(code) : StatusCode::kUnknown, status.error_message()};
}

std::string MetadataValue(const grpc::ServerContextBase& context, const std::string& name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

std::string BearerToken(const grpc::ServerContextBase& context) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string value = MetadataValue(context, "authorization");
  if (value.compare(0, kScheme.size(), kScheme) != 0) return {};
  return value.substr(kScheme.size());
}

}  // namespace kvfabric
