#include "client/connection_keeper.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

namespace {

// An answer of an agent that lives, which asking again at once will not change.
bool IsRefusal(StatusCode code) {
  switch (code) {
    case StatusCode::kNotFound:
    case StatusCode::kUnauthenticated:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnimplemented:
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

}  // namespace

ConnectionKeeper::ConnectionKeeper(EventLoop& loop, std::shared_ptr<LoopRef> ref,
                                   std::vector<SocketAddress> endpoints, Session::Options base)
    : loop_(loop),
      ref_(std::move(ref)),
      endpoints_(std::move(endpoints)),
      base_(std::move(base)),
      status_(Unavailable("not connected yet")) {}

void ConnectionKeeper::Start() { StartRound(0, endpoints_.size()); }

void ConnectionKeeper::Stop() {
  stopped_ = true;
  CancelTimer();
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mu_);
    session.swap(current_);
    status_ = Cancelled("the client was closed");
    over_ = true;
    changed_.NotifyAll();
  }
  if (session) session->Close();
}

std::shared_ptr<Session> ConnectionKeeper::Current() const {
  MutexLock lock(mu_);
  return current_;
}

std::shared_ptr<Session> ConnectionKeeper::WaitForCurrent(Deadline deadline) const {
  MutexLock lock(mu_);
  while (!current_ && !over_) {
    if (!changed_.WaitUntil(mu_, deadline.at())) break;
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

void ConnectionKeeper::StartRound(std::size_t first, std::size_t count) {
  Try({.number = ++round_, .index = first % endpoints_.size(), .left = count});
}

void ConnectionKeeper::Try(Round round) {
  if (stopped_) return;
  Session::Options options = base_;
  options.endpoint_index = round.index;
  options.address = endpoints_[round.index];
  const std::weak_ptr<ConnectionKeeper> weak = weak_from_this();
  Session::Events events;
  events.opened = [weak, round](std::shared_ptr<Session> session, Status status) {
    if (const auto self = weak.lock()) self->OnOpened(round, std::move(session), status);
  };
  events.closed = [weak](std::shared_ptr<Session> session, Status why) {
    if (const auto self = weak.lock()) self->OnSessionClosed(session, why);
  };
  Session::Open(loop_, ref_, std::move(options), std::move(events));
}

void ConnectionKeeper::OnOpened(Round round, std::shared_ptr<Session> session,
                                const Status& status) {
  const std::shared_ptr<Session> current = Current();
  if (session) {
    if (!stopped_ && (!current || session->endpoint_index() < current->endpoint_index())) {
      Adopt(std::move(session));
    } else {
      session->Close();
    }
    return;
  }
  if (stopped_ || round.number != round_) return;
  round.refused = round.refused || IsRefusal(status.code());
  {
    MutexLock lock(mu_);
    status_ = status.WithContext(endpoints_[round.index].ToString());
  }
  if (round.left > 1) {
    --round.left;
    round.index = (round.index + 1) % endpoints_.size();
    Try(round);
  } else if (current) {
    Schedule(kProbeEarlierEvery, 0, current->endpoint_index());
  } else {
    ScheduleRetry(0, round.refused);
  }
}

void ConnectionKeeper::Adopt(std::shared_ptr<Session> session) {
  const std::size_t index = session->endpoint_index();
  ++round_;  // what is still under way serves a list that has an answer
  adopted_at_ = Clock::System().Now();
  {
    MutexLock lock(mu_);
    current_.swap(session);
    ++connects_;
    changed_.NotifyAll();
  }
  // The one before stays for the leases and views that hang on it.
  if (session) session->Retire();
  CancelTimer();
  if (index > 0) Schedule(kProbeEarlierEvery, 0, index);
}

void ConnectionKeeper::OnSessionClosed(const std::shared_ptr<Session>& session, const Status& why) {
  {
    MutexLock lock(mu_);
    if (current_ != session) return;
    current_.reset();
    status_ = why.WithContext(endpoints_[session->endpoint_index()].ToString());
  }
  if (stopped_) return;
  // The one that just went away comes last.
  const std::size_t next = (session->endpoint_index() + 1) % endpoints_.size();
  if (Clock::System().Now() - adopted_at_ < kRetryMost) {
    ++round_;
    ScheduleRetry(next, false);
    return;
  }
  backoff_ = kRetryFirst;
  CancelTimer();
  StartRound(next, endpoints_.size());
}

void ConnectionKeeper::ScheduleRetry(std::size_t first, bool refused) {
  Schedule(refused ? kRetryMost : backoff_, first, endpoints_.size());
  backoff_ = std::min(backoff_ * 2, kRetryMost);
}

void ConnectionKeeper::Schedule(std::chrono::milliseconds delay, std::size_t first,
                                std::size_t count) {
  CancelTimer();
  const std::weak_ptr<ConnectionKeeper> weak = weak_from_this();
  timer_ = loop_.RunAfter(delay, [weak, first, count] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_ = 0;
    if (!self->stopped_) self->StartRound(first, count);
  });
}

void ConnectionKeeper::CancelTimer() {
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
}

}  // namespace kvfabric
