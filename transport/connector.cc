#include "transport/connector.h"

#include <sys/epoll.h>

#include <utility>

#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

using ConnectDone = std::function<void(Result<UniqueFd>)>;

// One connect under way; the loop owns it through its watch.
class PendingConnect final : public EventLoop::FdHandler,
                             public std::enable_shared_from_this<PendingConnect> {
 public:
  PendingConnect(EventLoop& loop, SocketAddress to, UniqueFd fd, ConnectDone done)
      : loop_(loop), to_(std::move(to)), fd_(std::move(fd)), done_(std::move(done)) {}

  void Begin(std::chrono::milliseconds timeout) {
    auto watch = loop_.Watch(fd_.get(), EPOLLOUT, shared_from_this());
    if (!watch.ok()) {
      Finish(watch.status());
      return;
    }
    watch_ = *watch;
    timer_ = loop_.RunAfter(timeout, [weak = weak_from_this(), timeout] {
      if (const auto self = weak.lock()) {
        self->Finish(DeadlineExceeded(self->to_.ToString() + ": connect: no answer (limit " +
                                      std::to_string(timeout.count()) + " ms)"));
      }
    });
  }

  void OnReady(std::uint32_t /*events*/) override { Finish(FinishConnect(fd_.get(), to_)); }
  void OnLoopStop() override { Finish(Cancelled(to_.ToString() + ": connect: this process ends")); }

 private:
  void Finish(const Status& status) {
    if (!done_) return;
    const auto self = weak_from_this().lock();
    const ConnectDone done = std::exchange(done_, nullptr);
    loop_.Unwatch(watch_);
    loop_.CancelTimer(timer_);
    done(status.ok() ? Result<UniqueFd>(std::move(fd_)) : status);
  }

  EventLoop& loop_;
  const SocketAddress to_;
  UniqueFd fd_;
  ConnectDone done_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace

void ConnectSocket(EventLoop& loop, const SocketAddress& to, std::chrono::milliseconds timeout,
                   ConnectDone done) {
  auto started = StartConnect(to);
  if (!started.ok()) {
    loop.RunAfter(Clock::Duration::zero(),
                  [done = std::move(done), status = started.status()] { done(status); });
    return;
  }
  // Also when it connected at once: the socket is writable then, and `done` runs from the loop.
  std::make_shared<PendingConnect>(loop, to, std::move(started->fd), std::move(done))
      ->Begin(timeout);
}

void Connect(EventLoop& loop, const SocketAddress& to, std::chrono::milliseconds timeout,
             bool accept_descriptors, std::function<void(Result<std::unique_ptr<Stream>>)> done) {
  ConnectSocket(
      loop, to, timeout,
      [name = to.ToString(), accept_descriptors, done = std::move(done)](Result<UniqueFd> socket) {
        if (!socket.ok()) {
          done(socket.status());
          return;
        }
        done(std::unique_ptr<Stream>(
            std::make_unique<PlainStream>(std::move(*socket), name, accept_descriptors)));
      });
}

}  // namespace kvfabric
