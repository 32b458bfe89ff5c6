#pragma once

// Our Status and gRPC's: the codes are the same numbers. Edges only.

#include <string>

#include "common/status.h"

namespace grpc {
class Status;
class ServerContextBase;
}  // namespace grpc

namespace kvfabric {

grpc::Status ToGrpcStatus(const Status& status);
Status FromGrpcStatus(const grpc::Status& status);

// The token of `authorization: Bearer TOKEN`; empty when there is none or it has another form.
std::string BearerToken(const grpc::ServerContextBase& context);
// A metadata value; empty when absent.
std::string MetadataValue(const grpc::ServerContextBase& context, const std::string& name);

}  // namespace kvfabric
