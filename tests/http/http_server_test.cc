#include "http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

std::map<std::string, HttpHandler> Routes() {
  return {{"/livez", [] { return HttpReply{.body = "ok\n"}; }},
          {"/readyz", [] { return HttpReply{.status = 503, .body = "recovering\n"}; }}};
}

std::unique_ptr<HttpServer> StartServer(HttpServer::Options options = {}) {
  auto server = HttpServer::Start(options, Routes());
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return std::move(server).value();
}

UniqueFd Connect(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

TEST(HttpServer, AnswersItsRoutesWithTheHandlersStatus) {
  const auto server = StartServer();
  httplib::Client client("127.0.0.1", server->port());
  const auto live = client.Get("/livez");
  ASSERT_TRUE(live);
  EXPECT_EQ(live->status, 200);
  EXPECT_EQ(live->body, "ok\n");
  const auto ready = client.Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(ready->body, "recovering\n");
}

TEST(HttpServer, RefusesOtherPathsAndMethods) {
  const auto server = StartServer();
  httplib::Client client("127.0.0.1", server->port());
  EXPECT_EQ(client.Get("/livez/x")->status, 404);
  EXPECT_EQ(client.Get("/")->status, 404);
  EXPECT_EQ(client.Post("/livez", "", "text/plain")->status, 405);
  EXPECT_EQ(client.Delete("/livez")->status, 405);
}

TEST(HttpServer, RefusesAPortInUseNamingTheAddress) {
  const auto first = StartServer();
  const auto second = HttpServer::Start({.port = first->port()}, Routes());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1:" + std::to_string(first->port())));
  EXPECT_THAT(second.status().message(), HasSubstr("stop what listens there"));
}

TEST(HttpServer, AnswersOthersWhileSilentClientsHoldConnections) {
  // More silent clients than threads: each is cut off after the time-out, then health is served.
  const auto server =
      StartServer({.threads = 2, .max_waiting = 2, .client_timeout = std::chrono::seconds(1)});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(Connect(server->port()));
  httplib::Client client("127.0.0.1", server->port());
  client.set_read_timeout(20);
  const auto live = client.Get("/livez");
  ASSERT_TRUE(live);
  EXPECT_EQ(live->status, 200);
}

TEST(HttpServer, ClosesOnGarbage) {
  const auto server = StartServer();
  const UniqueFd fd = Connect(server->port());
  const std::string garbage("\x00\xff not http\r\n\r\n", 14);
  ASSERT_GT(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) {
  }
  EXPECT_EQ(got, 0);
  httplib::Client client("127.0.0.1", server->port());
  EXPECT_EQ(client.Get("/livez")->status, 200);
}

TEST(HttpServer, StopsWithAnOpenConnection) {
  auto server = StartServer();
  const std::uint16_t port = server->port();
  const UniqueFd fd = Connect(port);
  server.reset();  // returns: bounded by the time-outs
  EXPECT_FALSE(httplib::Client("127.0.0.1", port).Get("/livez"));
}

}  // namespace
}  // namespace kvfabric
