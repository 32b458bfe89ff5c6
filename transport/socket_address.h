#pragma once

// SocketAddress: where a stream goes: `unix:/path` or `tcp:host:port`. Values; any thread.

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric {

class SocketAddress {
 public:
  SocketAddress() = default;

  // `unix:/path`, `tcp:host:port`, `tcp:[v6]:port`. Only numeric hosts (and `localhost`); never
  // blocks. INVALID_ARGUMENT says what to write instead.
  static Result<SocketAddress> Parse(std::string_view text);
  // As Parse; other host names are looked up, which may block for seconds: never on a loop.
  static Result<SocketAddress> Resolve(std::string_view text);
  static Result<SocketAddress> Tcp(std::string_view numeric_host, std::uint16_t port);
  static Result<SocketAddress> Unix(std::string_view path);
  // The address a bound socket has, and the one at the other end of a connected TCP socket.
  static Result<SocketAddress> OfSocket(int fd);
  static Result<SocketAddress> OfPeer(int fd);

  bool is_unix() const { return storage_.ss_family == AF_UNIX; }
  const std::string& path() const { return path_; }  // unix only
  std::uint16_t port() const;                        // tcp only
  std::string ToString() const;

  const sockaddr* addr() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
  std::string path_;
};

}  // namespace kvfabric
