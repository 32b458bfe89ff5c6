#include "operator/kube/watch_connections.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace kvfabric::kube {
namespace {

constexpr std::chrono::milliseconds kLongestPoll{60'000};

}  // namespace

WatchConnections::Connection::Connection(WatchConnections& owner, UniqueFd wake, int client)
    : owner_(owner), wake_(std::move(wake)), client_(client) {}

WatchConnections::Connection::~Connection() {
  feed_.reset();  // no callback after this
  MutexLock lock(owner_.mu_);
  owner_.open_.erase(this);
}

void WatchConnections::Connection::Wake() const {
  // Fails only when it is full of wakes already.
  ::eventfd_write(wake_.get(), 1);
}

WatchConnections::Connection::Next WatchConnections::Connection::Wait(std::string* text) {
  for (;;) {
    // Before looking: what comes after the look wakes again.
    eventfd_t wakes = 0;
    ::eventfd_read(wake_.get(), &wakes);
    text->clear();
    if (owner_.stopping()) return Next::kEnd;
    if (!feed_->Next(text)) return Next::kEnd;
    if (!text->empty()) return Next::kSend;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        feed_->next_due() - Clock::System().Now() + std::chrono::milliseconds(1));
    const auto wait = std::clamp(left, std::chrono::milliseconds(0), kLongestPoll);
    std::array<pollfd, 2> fds{pollfd{wake_.get(), POLLIN, 0}, pollfd{client_, POLLRDHUP, 0}};
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
    if (ready < 0 && errno != EINTR) return Next::kClientGone;
    if (fds[1].revents != 0) return Next::kClientGone;
  }
}

Result<std::shared_ptr<WatchConnections::Connection>> WatchConnections::Open(int client) {
  UniqueFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return ErrnoStatus(errno, "watch: make an eventfd");
  auto connection = std::make_shared<Connection>(*this, std::move(wake), client);
  MutexLock lock(mu_);
  open_.insert(connection.get());
  return connection;
}

void WatchConnections::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  for (const Connection* connection : open_) connection->Wake();
}

}  // namespace kvfabric::kube
