#include "agent/service/grpc_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvfabric/v1/control.grpc.pb.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

TEST(GrpcServer, RefusesAPortInUseNamingAddressAndCause) {
  v1::Control::CallbackService service;
  auto first = GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const std::uint16_t port = (*first)->port();
  ASSERT_NE(port, 0);
  const auto second = GrpcServer::Start({.listen = {"127.0.0.1", port}}, {&service});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(second.status().message(), HasSubstr("in use: stop what listens there"));
}

TEST(GrpcServer, RefusesAnAddressThisHostDoesNotHave) {
  EXPECT_FALSE(GrpcServer::Start({.listen = {"192.0.2.1", 0}}, {}).ok());
  EXPECT_EQ(GrpcServer::Start({.listen = {"localhost", 0}}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvfabric
