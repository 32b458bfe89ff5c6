#include "transport/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

namespace kvfabric {

namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kTcpPrefix = "tcp:";

struct HostAndPort {
  std::string host;
  std::uint16_t port = 0;
};

std::optional<HostAndPort> SplitHostPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;  // an IPv6 address without brackets: which colon is the port's?
  }
  HostAndPort split{std::string(host), 0};
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), split.port);
  if (host.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return split;
}

Status Malformed(std::string_view text) {
  return InvalidArgument("address " + std::string(text) +
                         ": parse: write unix:/PATH, tcp:HOST:PORT or tcp:[IPV6]:PORT");
}

}  // namespace

Result<SocketAddress> SocketAddress::Parse(std::string_view text) {
  if (text.substr(0, kUnixPrefix.size()) == kUnixPrefix) {
    return Unix(text.substr(kUnixPrefix.size()));
  }
  if (text.substr(0, kTcpPrefix.size()) != kTcpPrefix) return Malformed(text);
  const auto split = SplitHostPort(text.substr(kTcpPrefix.size()));
  if (!split) return Malformed(text);
  return Tcp(split->host == "localhost" ? "127.0.0.1" : split->host, split->port);
}

Result<SocketAddress> SocketAddress::Resolve(std::string_view text) {
  Result<SocketAddress> numeric = Parse(text);
  if (numeric.ok() || text.substr(0, kTcpPrefix.size()) != kTcpPrefix) return numeric;
  const auto split = SplitHostPort(text.substr(kTcpPrefix.size()));
  if (!split) return Malformed(text);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(split->host.c_str(), nullptr, &hints, &found);
  if (rc != 0) {
    return Unavailable("host " + split->host + ": look up: " + ::gai_strerror(rc));
  }
  SocketAddress address;
  address.length_ = found->ai_addrlen;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage_)->sin6_port = htons(split->port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage_)->sin_port = htons(split->port);
  }
  return address;
}

Result<SocketAddress> SocketAddress::Tcp(std::string_view numeric_host, std::uint16_t port) {
  SocketAddress address;
  const std::string host(numeric_host);
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&address.storage_, &v4, sizeof(v4));
    address.length_ = sizeof(v4);
    return address;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&address.storage_, &v6, sizeof(v6));
    address.length_ = sizeof(v6);
    return address;
  }
  return InvalidArgument("host " + host + ": parse: not a numeric address");
}

Result<SocketAddress> SocketAddress::Unix(std::string_view path) {
  sockaddr_un un{};
  if (path.empty() || path.front() != '/' || path.size() >= sizeof(un.sun_path)) {
    return InvalidArgument("socket path " + std::string(path) +
                           ": parse: must be absolute and shorter than " +
                           std::to_string(sizeof(un.sun_path)) + " bytes");
  }
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.data(), path.size());
  SocketAddress address;
  std::memcpy(&address.storage_, &un, sizeof(un));
  address.length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  address.path_ = std::string(path);
  return address;
}

Result<SocketAddress> SocketAddress::OfSocket(int fd) {
  SocketAddress address;
  address.length_ = sizeof(address.storage_);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    return ErrnoStatus(errno, "socket: read its address");
  }
  return address;
}

Result<SocketAddress> SocketAddress::OfPeer(int fd) {
  SocketAddress address;
  address.length_ = sizeof(address.storage_);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    return ErrnoStatus(errno, "socket: read the other end's address");
  }
  return address;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return family() == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port)
                             : std::uint16_t{0};
}

std::string SocketAddress::ToString() const {
  if (is_unix()) return std::string(kUnixPrefix) + path_;
  char host[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    return std::string(kTcpPrefix) + "[" + host + "]:" + std::to_string(port());
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
  ::inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
  return std::string(kTcpPrefix) + host + ":" + std::to_string(port());
}

}  // namespace kvfabric
