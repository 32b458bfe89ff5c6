#pragma once

// Addresses where no agent answers: Blackhole takes no connection and refuses none; AlienListener
// accepts and speaks something else, or nothing. Owned by a test; any thread.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "transport/event_loop.h"
#include "transport/listener.h"
#include "transport/plain_stream.h"
#include "transport/socket_address.h"

namespace kvfabric {

// A TCP port whose backlog is full: a connect to it stays unanswered.
class Blackhole {
 public:
  Blackhole() {
    const auto any = SocketAddress::Tcp("127.0.0.1", 0);
    listening_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    KVF_CHECK(::bind(listening_.get(), any->addr(), any->length()) == 0, "bind");
    KVF_CHECK(::listen(listening_.get(), 0) == 0, "listen");
    auto address = SocketAddress::OfSocket(listening_.get());
    KVF_CHECK(address.ok(), "address");
    address_ = *address;
    for (int i = 0; i < 8; ++i) {
      auto started = StartConnect(address_);
      KVF_CHECK(started.ok(), "fill the backlog");
      waiting_.push_back(std::move(started->fd));
    }
  }
  std::string endpoint() const { return address_.ToString(); }

 private:
  UniqueFd listening_;
  SocketAddress address_;
  std::vector<UniqueFd> waiting_;
};

class AlienListener {
 public:
  // Sends `greeting` to whoever connects and never reads.
  AlienListener(std::uint16_t port, std::string greeting) {
    auto loop = EventLoop::Create({.name = "alien"});
    KVF_CHECK(loop.ok(), "cannot make a loop");
    loop_ = std::move(*loop);
    const auto address = SocketAddress::Tcp("127.0.0.1", port);
    auto listener = Listener::Listen(
        *loop_, {.address = *address}, [this, greeting](UniqueFd fd, const std::string&) {
          if (!greeting.empty()) {
            static_cast<void>(!::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL));
          }
          taken_.push_back(std::move(fd));
        });
    KVF_CHECK(listener.ok(), "cannot listen");
    listener_ = std::move(*listener);
  }
  ~AlienListener() {
    listener_.reset();
    loop_->Stop();
  }
  AlienListener(const AlienListener&) = delete;  // owns a port
  AlienListener& operator=(const AlienListener&) = delete;

  std::string endpoint() const { return listener_->address().ToString(); }
  std::size_t taken() {
    std::size_t count = 0;
    loop_->RunSync([&] { count = taken_.size(); });
    return count;
  }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::vector<UniqueFd> taken_;  // the loop's
  std::unique_ptr<Listener> listener_;
};

}  // namespace kvfabric
