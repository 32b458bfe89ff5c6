#include "transport/plain_stream.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace kvfabric {

namespace {

constexpr int kUserTimeoutMs = 10'000;  // unacknowledged data for this long = dead path
constexpr int kKeepaliveIdleS = 5;
constexpr int kKeepaliveIntervalS = 2;
constexpr int kKeepaliveProbes = 3;
constexpr std::size_t kMaxReceivedDescriptors = 2 * kMaxDescriptorsPerWrite;

IoResult Ended(IoState state, Status status = {}) { return {state, 0, std::move(status)}; }

void SetOption(int fd, int level, int name, int value) {
  // Best effort: a kernel without one of these still moves bytes.
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof(value)));
}

}  // namespace

Status ConfigureSocket(int fd, bool tcp) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "socket: make non-blocking");
  }
  if (tcp) {
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleS);
    SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalS);
    SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
    SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  }
  return Status::Ok();
}

PlainStream::PlainStream(UniqueFd fd, std::string peer, bool accept_descriptors)
    : fd_(std::move(fd)), peer_(std::move(peer)), accept_descriptors_(accept_descriptors) {}

IoResult PlainStream::Read(std::span<const iovec> into) {
  if (accept_descriptors_) return ReadWithDescriptors(into);
  for (;;) {
    const ssize_t n = ::readv(fd_.get(), into.data(),
                              static_cast<int>(std::min<std::size_t>(into.size(), IOV_MAX)));
    if (n > 0) return {IoState::kDone, static_cast<std::size_t>(n), {}};
    if (n == 0) return Ended(IoState::kClosed);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Ended(IoState::kWantRead);
    return Ended(IoState::kFailed, ErrnoStatus(errno, peer_ + ": receive"));
  }
}

IoResult PlainStream::ReadWithDescriptors(std::span<const iovec> into) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptorsPerWrite)];
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(into.data());
  message.msg_iovlen = std::min<std::size_t>(into.size(), IOV_MAX);
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = 0;
  do {
    n = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Ended(IoState::kWantRead);
    return Ended(IoState::kFailed, ErrnoStatus(errno, peer_ + ": receive"));
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      received_.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 || received_.size() > kMaxReceivedDescriptors) {
    return Ended(IoState::kFailed,
                 ResourceExhausted(peer_ + ": receive descriptors: truncated (limit " +
                                   std::to_string(kMaxDescriptorsPerWrite) +
                                   " a frame; is RLIMIT_NOFILE reached?)"));
  }
  if (n == 0) return Ended(IoState::kClosed);
  return {IoState::kDone, static_cast<std::size_t>(n), {}};
}

IoResult PlainStream::Write(std::span<const iovec> from, std::span<const int> descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptorsPerWrite)];
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = std::min<std::size_t>(from.size(), IOV_MAX);
  if (!descriptors.empty()) {
    if (descriptors.size() > kMaxDescriptorsPerWrite) {
      return Ended(IoState::kFailed, InvalidArgument(peer_ + ": send: too many descriptors"));
    }
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    std::memset(control, 0, message.msg_controllen);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n >= 0) return {IoState::kDone, static_cast<std::size_t>(n), {}};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Ended(IoState::kWantWrite);
    return Ended(IoState::kFailed, ErrnoStatus(errno, peer_ + ": send"));
  }
}

std::vector<UniqueFd> PlainStream::TakeDescriptors() { return std::exchange(received_, {}); }

Result<StartedConnect> StartConnect(const SocketAddress& to) {
  StartedConnect started;
  started.fd.reset(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!started.fd) return ErrnoStatus(errno, to.ToString() + ": make a socket");
  KVF_RETURN_IF_ERROR(ConfigureSocket(started.fd.get(), !to.is_unix()));
  if (::connect(started.fd.get(), to.addr(), to.length()) == 0) {
    started.connected = true;
    return started;
  }
  if (errno == EINPROGRESS) return started;
  // A Unix listener whose backlog is full answers EAGAIN; there is nothing to wait on.
  const int error = errno == EAGAIN || errno == ENOENT ? ECONNREFUSED : errno;
  return ErrnoStatus(error, to.ToString() + ": connect");
}

Status FinishConnect(int fd, const SocketAddress& to) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? Status::Ok() : ErrnoStatus(error, to.ToString() + ": connect");
}

Result<UniqueFd> ConnectBlocking(const SocketAddress& to, Deadline deadline) {
  KVF_ASSIGN_OR_RETURN(StartedConnect started, StartConnect(to));
  while (!started.connected) {
    pollfd ready{started.fd.get(), POLLOUT, 0};
    const auto left = deadline.Remaining(Clock::System());
    const int n = ::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (n < 0 && errno != EINTR) return ErrnoStatus(errno, to.ToString() + ": wait for connect");
    if (n > 0) {
      KVF_RETURN_IF_ERROR(FinishConnect(started.fd.get(), to));
      started.connected = true;
    } else if (deadline.Passed(Clock::System())) {
      return DeadlineExceeded(to.ToString() + ": connect: no answer in time");
    }
  }
  return std::move(started.fd);
}

}  // namespace kvfabric
