#include "client/connection_keeper.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

ConnectionKeeper::ConnectionKeeper(EventLoop& loop, std::vector<SocketAddress> endpoints,
                                   Session::Options base)
    : loop_(loop),
      endpoints_(std::move(endpoints)),
      base_(std::move(base)),
      status_(Unavailable("not connected yet")) {}

void ConnectionKeeper::Start() { Try(0, endpoints_.size()); }

void ConnectionKeeper::Stop() {
  stopped_ = true;
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mu_);
    session.swap(current_);
    status_ = Cancelled("the client was closed");
  }
  if (session) session->Close();
}

std::shared_ptr<Session> ConnectionKeeper::Current() const {
  MutexLock lock(mu_);
  return current_;
}

std::shared_ptr<Session> ConnectionKeeper::WaitForCurrent(Deadline deadline) const {
  MutexLock lock(mu_);
  while (!current_) {
    if (!changed_.WaitUntil(mu_, deadline.at()) && !current_) return nullptr;
  }
  return current_;
}

Status ConnectionKeeper::status() const {
  MutexLock lock(mu_);
  return current_ ? Status::Ok() : status_;
}

std::uint64_t ConnectionKeeper::connects() const {
  MutexLock lock(mu_);
  return connects_;
}

void ConnectionKeeper::Try(std::size_t first, std::size_t left) {
  if (stopped_) return;
  trying_ = true;
  Session::Options options = base_;
  options.endpoint_index = first % endpoints_.size();
  options.address = endpoints_[options.endpoint_index];
  const std::weak_ptr<ConnectionKeeper> weak = weak_from_this();
  Session::Events events;
  events.opened = [weak, first, left](std::shared_ptr<Session> session, Status status) {
    if (const auto self = weak.lock()) self->OnOpened(first, left, std::move(session), status);
  };
  events.closed = [weak](std::shared_ptr<Session> session, Status why) {
    if (const auto self = weak.lock()) self->OnSessionClosed(session, why);
  };
  Session::Open(loop_, std::move(options), std::move(events));
}

void ConnectionKeeper::OnOpened(std::size_t first, std::size_t left,
                                std::shared_ptr<Session> session, const Status& status) {
  trying_ = false;
  if (stopped_) {
    if (session) session->Close();
    return;
  }
  if (session) return Adopt(std::move(session));
  {
    MutexLock lock(mu_);
    status_ = status.WithContext(endpoints_[first % endpoints_.size()].ToString());
  }
  if (left > 1) return Try(first + 1, left - 1);
  RetryLater();
}

void ConnectionKeeper::Adopt(std::shared_ptr<Session> session) {
  backoff_ = kRetryFirst;
  const bool earlier_exist = session->endpoint_index() > 0;
  {
    MutexLock lock(mu_);
    current_.swap(session);
    ++connects_;
  }
  // The one before stays open for the leases that hang on it and closes when they are gone; a
  // session that nobody holds but its connection is closed here.
  if (session && session.use_count() <= 2) session->Close();
  changed_.NotifyAll();
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
  if (earlier_exist) RetryLater();
}

void ConnectionKeeper::OnSessionClosed(const std::shared_ptr<Session>& session, const Status& why) {
  bool was_current = false;
  {
    MutexLock lock(mu_);
    was_current = current_ == session;
    if (was_current) {
      current_.reset();
      status_ = why.WithContext(endpoints_[session->endpoint_index()].ToString());
    }
  }
  if (!was_current || stopped_) return;
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
  // The one that just went away comes last.
  if (!trying_) Try(session->endpoint_index() + 1, endpoints_.size());
}

// With a session: look whether an earlier endpoint is back. Without: another round.
void ConnectionKeeper::RetryLater() {
  if (timer_ != 0) loop_.CancelTimer(timer_);
  const bool connected = Current() != nullptr;
  const auto delay = connected ? kProbeEarlierEvery : backoff_;
  if (!connected) backoff_ = std::min(backoff_ * 2, kRetryMost);
  const std::weak_ptr<ConnectionKeeper> weak = weak_from_this();
  timer_ = loop_.RunAfter(delay, [weak] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_ = 0;
    self->ProbeEarlier();
  });
}

void ConnectionKeeper::ProbeEarlier() {
  if (stopped_ || trying_) return;
  const std::shared_ptr<Session> current = Current();
  Try(0, current ? current->endpoint_index() : endpoints_.size());
}

}  // namespace kvfabric
