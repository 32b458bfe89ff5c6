#pragma once

// HttpServer answers GET on a fixed set of paths: /metrics, /livez, /readyz. Plain HTTP, read-only.
//
// Owned by main. Handlers run on its own threads, concurrently, and must be short; they outlive
// the server. Bounded: `threads` requests at once, `max_waiting` accepted sockets behind them,
// then the kernel's backlog; request bodies are refused; a silent client loses its connection
// after `client_timeout`. Another path answers 404, another method 405.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/status.h"

namespace kvfabric {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};
using HttpHandler = std::function<HttpReply()>;

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    std::uint16_t port = 0;  // 0 = any free one
    std::size_t threads = 2;
    std::size_t max_waiting = 64;
    std::chrono::seconds client_timeout{2};  // for each of: first byte, rest, reply
  };

  // FAILED_PRECONDITION when the port is taken, with the address in the text.
  static Result<std::unique_ptr<HttpServer>> Start(Options options,
                                                   std::map<std::string, HttpHandler> routes);
  ~HttpServer();                           // stops accepting, lets running handlers end, joins
  HttpServer(const HttpServer&) = delete;  // owns a thread and a socket
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvfabric
