#pragma once

// Listener: accepts connections on one address. A Unix path is guarded by flock on `PATH.lock`,
// so that of any number of processes that start at once exactly one listens, and a socket file
// left by a dead one is replaced; a live one, ours or alien, is never taken over.
//
// Owned by a service; made and destroyed on any thread, the callback runs on the loop.

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "common/unique_fd.h"
#include "transport/event_loop.h"
#include "transport/socket_address.h"

namespace kvfabric {

class Listener {
 public:
  struct Options {
    SocketAddress address;
    int backlog = 512;
    unsigned unix_mode = 0660;  // of the socket file; access is decided by token, not by mode
  };
  // Gets each accepted socket (non-blocking, close-on-exec) and the other end's name.
  using OnAccept = std::function<void(UniqueFd fd, std::string peer)>;

  // FAILED_PRECONDITION: somebody listens there already. Blocks for a few system calls.
  static Result<std::unique_ptr<Listener>> Listen(EventLoop& loop, Options options,
                                                  OnAccept on_accept);
  ~Listener();                         // closes; a Unix socket file goes too
  Listener(const Listener&) = delete;  // owns the socket file
  Listener& operator=(const Listener&) = delete;

  // With port 0 the one the kernel chose.
  const SocketAddress& address() const { return address_; }

 private:
  class Acceptor;
  Listener(EventLoop& loop, SocketAddress address, UniqueFd lock);

  EventLoop& loop_;  // borrowed; outlives this
  const SocketAddress address_;
  UniqueFd lock_;  // Unix only
  std::shared_ptr<Acceptor> acceptor_;
};

}  // namespace kvfabric
