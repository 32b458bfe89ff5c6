#pragma once

// PlainStream: a TCP or Unix socket as it is. Owns the descriptor; see Stream for threads.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "transport/socket_address.h"
#include "transport/stream.h"

namespace kvfabric {

class PlainStream final : public Stream {
 public:
  // Takes a connected socket; makes it non-blocking and, for TCP, sets TCP_NODELAY and keepalive.
  // Received descriptors are accepted only with `accept_descriptors` (Unix sockets).
  PlainStream(UniqueFd fd, std::string peer, bool accept_descriptors = false);

  IoResult Handshake() override { return {}; }
  IoResult Read(std::span<const iovec> into) override;
  IoResult Write(std::span<const iovec> from, std::span<const int> descriptors) override;
  std::vector<UniqueFd> TakeDescriptors() override;
  int fd() const override { return fd_.get(); }
  const std::string& peer() const override { return peer_; }

 private:
  IoResult ReadWithDescriptors(std::span<const iovec> into);

  UniqueFd fd_;
  const std::string peer_;
  const bool accept_descriptors_;
  std::vector<UniqueFd> received_;
};

// What every socket of ours gets: close-on-exec, non-blocking and, for TCP, no Nagle, keepalive
// and a user time-out, so that a dead path is noticed.
Status ConfigureSocket(int fd, bool tcp);

// A non-blocking socket whose connect has been started (`connected` when it finished at once).
struct StartedConnect {
  UniqueFd fd;
  bool connected = false;
};
Result<StartedConnect> StartConnect(const SocketAddress& to);
// The outcome of a started connect once its socket became writable.
Status FinishConnect(int fd, const SocketAddress& to);
// Blocks until connected or `deadline`; for threads that may wait.
Result<UniqueFd> ConnectBlocking(const SocketAddress& to, Deadline deadline);

}  // namespace kvfabric
