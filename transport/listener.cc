#include "transport/listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/log.h"
#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

constexpr int kAcceptsPerTurn = 64;
// Without a free descriptor the kernel would report the same connection for ever.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr const char* kNextStep = ": stop what listens there, or choose another address";

Result<UniqueFd> LockPath(const std::string& path) {
  const std::string lock_path = path + ".lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return ErrnoStatus(errno, lock_path + ": open");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, lock_path + ": lock");
    return FailedPrecondition("socket " + path + ": listen: another process listens there" +
                              kNextStep);
  }
  return lock;
}

// With the lock held: nobody of ours lives there. An alien that answers keeps its socket.
Status RemoveStaleSocket(const SocketAddress& address) {
  struct stat found {};
  if (::lstat(address.path().c_str(), &found) != 0) {
    return errno == ENOENT ? Status::Ok() : ErrnoStatus(errno, address.path() + ": look at");
  }
  if (!S_ISSOCK(found.st_mode)) {
    return FailedPrecondition(address.path() + ": listen: exists and is no socket: remove it");
  }
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoStatus(errno, "socket: make");
  if (::connect(probe.get(), address.addr(), address.length()) == 0 || errno == EAGAIN) {
    return FailedPrecondition("socket " + address.path() +
                              ": listen: another program listens there" + kNextStep);
  }
  if (::unlink(address.path().c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, address.path() + ": remove stale socket");
  }
  return Status::Ok();
}

Result<UniqueFd> Bind(const Listener::Options& options) {
  const SocketAddress& address = options.address;
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus(errno, address.ToString() + ": make a socket");
  if (!address.is_unix()) {
    const int on = 1;
    static_cast<void>(::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
  }
  if (::bind(fd.get(), address.addr(), address.length()) != 0) {
    const int error = errno;
    const std::string who = address.ToString() + ": listen";
    return error == EADDRINUSE ? FailedPrecondition(who + ": the address is in use" + kNextStep)
                               : ErrnoStatus(error, who);
  }
  if (address.is_unix() && ::chmod(address.path().c_str(), options.unix_mode) != 0) {
    return ErrnoStatus(errno, address.path() + ": set mode");
  }
  if (::listen(fd.get(), options.backlog) != 0) {
    return ErrnoStatus(errno, address.ToString() + ": listen");
  }
  return fd;
}

std::string PeerName(const SocketAddress& address, int fd) {
  if (address.is_unix()) {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return "unix";
    return "unix pid " + std::to_string(credentials.pid);
  }
  const auto peer = SocketAddress::OfPeer(fd);
  return peer.ok() ? peer->ToString() : "tcp";
}

}  // namespace

class Listener::Acceptor final : public EventLoop::FdHandler,
                                 public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(EventLoop& loop, SocketAddress address, UniqueFd fd, OnAccept on_accept)
      : loop_(loop),
        address_(std::move(address)),
        fd_(std::move(fd)),
        on_accept_(std::move(on_accept)) {}

  Status Begin() {
    KVF_ASSIGN_OR_RETURN(watch_, loop_.Watch(fd_.get(), EPOLLIN, shared_from_this()));
    return Status::Ok();
  }
  void End() {
    loop_.Unwatch(watch_);
    fd_.reset();
    on_accept_ = nullptr;
  }
  void OnLoopStop() override { End(); }

  void OnReady(std::uint32_t /*events*/) override {
    for (int i = 0; i < kAcceptsPerTurn && fd_; ++i) {
      UniqueFd accepted(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!accepted) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) Rest();
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      if (!ConfigureSocket(accepted.get(), !address_.is_unix()).ok()) continue;
      std::string peer = PeerName(address_, accepted.get());
      on_accept_(std::move(accepted), std::move(peer));
    }
  }

 private:
  void Rest() {
    LogWarn("no descriptor left for a connection", {{"address", address_.ToString()}});
    loop_.Rearm(watch_, 0);
    loop_.RunAfter(kAcceptPause, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->loop_.Rearm(self->watch_, EPOLLIN);
    });
  }

  EventLoop& loop_;
  const SocketAddress address_;
  UniqueFd fd_;
  OnAccept on_accept_;
  EventLoop::WatchId watch_ = 0;
};

Result<std::unique_ptr<Listener>> Listener::Listen(EventLoop& loop, Options options,
                                                   OnAccept on_accept) {
  UniqueFd lock;
  if (options.address.is_unix()) {
    KVF_ASSIGN_OR_RETURN(lock, LockPath(options.address.path()));
    KVF_RETURN_IF_ERROR(RemoveStaleSocket(options.address));
  }
  KVF_ASSIGN_OR_RETURN(UniqueFd fd, Bind(options));
  SocketAddress address = options.address;
  if (!address.is_unix()) {
    KVF_ASSIGN_OR_RETURN(address, SocketAddress::OfSocket(fd.get()));
  }
  std::unique_ptr<Listener> listener(new Listener(loop, address, std::move(lock)));
  listener->acceptor_ =
      std::make_shared<Acceptor>(loop, address, std::move(fd), std::move(on_accept));
  Status begun;
  if (!loop.RunSync([&] { begun = listener->acceptor_->Begin(); })) {
    begun = Cancelled(address.ToString() + ": listen: the loop has stopped");
  }
  KVF_RETURN_IF_ERROR(begun);
  return listener;
}

Listener::Listener(EventLoop& loop, SocketAddress address, UniqueFd lock)
    : loop_(loop), address_(std::move(address)), lock_(std::move(lock)) {}

Listener::~Listener() {
  if (acceptor_ != nullptr) loop_.RunSync([this] { acceptor_->End(); });
  // The lock file stays: removing it would let two processes hold locks on different files.
  if (address_.is_unix() && lock_) ::unlink(address_.path().c_str());
}

}  // namespace kvfabric
