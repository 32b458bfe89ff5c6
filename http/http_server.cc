#include "http/http_server.h"

#include <httplib.h>

#include <cerrno>
#include <future>
#include <thread>
#include <utility>

#include "http/listener_options.h"

namespace kvfabric {
namespace {

// cpp-httplib's view of BoundedTasks.
class TaskQueue final : public httplib::TaskQueue {
 public:
  TaskQueue(std::size_t threads, std::size_t max_waiting) : tasks_(threads, max_waiting) {}
  void enqueue(std::function<void()> task) override { tasks_.Enqueue(std::move(task)); }
  void shutdown() override { tasks_.Shutdown(); }

 private:
  BoundedTasks tasks_;
};

}  // namespace

struct HttpServer::State {
  httplib::Server server;
  std::uint16_t port = 0;
  std::thread thread;
};

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Options options,
                                                      std::map<std::string, HttpHandler> routes) {
  auto state = std::make_unique<State>();
  httplib::Server& server = state->server;
  server.set_socket_options(ReuseAddressOnly);
  server.set_read_timeout(options.client_timeout);
  server.set_write_timeout(options.client_timeout);
  server.set_keep_alive_timeout(options.client_timeout.count());  // until the first byte
  server.set_keep_alive_max_count(1);  // an idle scraper must not hold a thread
  server.set_payload_max_length(1);

  const auto shared = std::make_shared<const std::map<std::string, HttpHandler>>(std::move(routes));
  server.set_pre_routing_handler(
      [shared](const httplib::Request& request, httplib::Response& response) {
        HttpReply reply;
        const auto route = shared->find(request.path);
        if (request.method != "GET" && request.method != "HEAD") {
          reply = {.status = 405, .body = request.method + ": method not allowed: use GET\n"};
        } else if (route == shared->end()) {
          reply = {.status = 404, .body = "not found\n"};
        } else {
          reply = route->second();
        }
        response.status = reply.status;
        response.set_content(reply.body, reply.content_type.c_str());
        return httplib::Server::HandlerResponse::Handled;
      });

  const auto listening = std::make_shared<std::promise<void>>();
  server.new_task_queue = [listening, threads = options.threads,
                           max_waiting = options.max_waiting]() -> httplib::TaskQueue* {
    auto tasks = std::make_unique<TaskQueue>(threads, max_waiting);
    listening->set_value();
    return tasks.release();  // cpp-httplib deletes it
  };

  const std::string address = options.host + ":" + std::to_string(options.port);
  errno = 0;
  const int port = options.port == 0
                       ? server.bind_to_any_port(options.host)
                       : (server.bind_to_port(options.host, options.port) ? options.port : -1);
  if (port <= 0) {
    const int cause = errno != 0 ? errno : EADDRNOTAVAIL;
    const std::string who = "http server: listen on " + address;
    if (cause != EADDRINUSE) return ErrnoStatus(cause, who);
    return FailedPrecondition(
        who + ": the address is in use: stop what listens there, or choose another address");
  }
  state->port = static_cast<std::uint16_t>(port);
  state->thread = std::thread([raw = &server] { raw->listen_after_bind(); });
  // Only a running server can be stopped: wait until its task queue was asked for.
  listening->get_future().wait();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  state_->server.stop();
  state_->thread.join();
}

std::uint16_t HttpServer::port() const { return state_->port; }

}  // namespace kvfabric
