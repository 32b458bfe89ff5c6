#pragma once

// ConnectionKeeper: keeps a client connected to one agent of an ordered list: the first that
// answers, and back to an earlier one when it is there again.
//
// Owned by the client; everything but the accessors runs on the client's loop. An agent that went
// away is replaced by the next of the list at once. When none answers the round is repeated after
// kRetryFirst, doubling to kRetryMost; so it is when agents accept us and end the session within
// kRetryMost. An agent that refuses us (unknown pool, wrong token, another version) is asked again
// every kRetryMost.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/loop_ref.h"
#include "client/session.h"
#include "common/mutex.h"

namespace kvfabric {

class ConnectionKeeper : public std::enable_shared_from_this<ConnectionKeeper> {
 public:
  static constexpr std::chrono::milliseconds kRetryFirst{50};
  static constexpr std::chrono::milliseconds kRetryMost{1000};
  static constexpr std::chrono::milliseconds kProbeEarlierEvery{1000};

  // `base` is completed with each endpoint's address and index.
  ConnectionKeeper(EventLoop& loop, std::shared_ptr<LoopRef> ref,
                   std::vector<SocketAddress> endpoints, Session::Options base);

  void Start();
  // Closes the session, makes no new one and wakes all that wait for one. On the loop.
  void Stop() EXCLUDES(mu_);

  // Null while there is none. Any thread.
  std::shared_ptr<Session> Current() const EXCLUDES(mu_);
  // Waits for a session; null when none came by the deadline. Any thread but the loop's.
  std::shared_ptr<Session> WaitForCurrent(Deadline deadline) const EXCLUDES(mu_);
  // Why there is no session; OK while there is one. Any thread.
  Status status() const EXCLUDES(mu_);
  std::uint64_t connects() const EXCLUDES(mu_);

 private:
  // A walk over the endpoints: index, index + 1, ... `left` of them, in a circle. One that a later
  // round has replaced still brings its session, if it is of use, but goes no further.
  struct Round {
    std::uint64_t number = 0;
    std::size_t index = 0;
    std::size_t left = 0;
    bool refused = false;  // some agent of it said no
  };

  void StartRound(std::size_t first, std::size_t count);
  void Try(Round round);
  void OnOpened(Round round, std::shared_ptr<Session> session, const Status& status);
  void OnSessionClosed(const std::shared_ptr<Session>& session, const Status& why) EXCLUDES(mu_);
  void Adopt(std::shared_ptr<Session> session) EXCLUDES(mu_);
  // Looks at `count` endpoints from `first` on after `delay`.
  void Schedule(std::chrono::milliseconds delay, std::size_t first, std::size_t count);
  void ScheduleRetry(std::size_t first, bool refused);
  void CancelTimer();

  EventLoop& loop_;  // borrowed; only on the loop, which is there then
  const std::shared_ptr<LoopRef> ref_;
  const std::vector<SocketAddress> endpoints_;
  const Session::Options base_;

  // Loop thread.
  bool stopped_ = false;
  std::uint64_t round_ = 0;  // the latest
  EventLoop::TimerId timer_ = 0;
  std::chrono::milliseconds backoff_ = kRetryFirst;
  Clock::TimePoint adopted_at_{};

  mutable Mutex mu_;
  mutable CondVar changed_;
  std::shared_ptr<Session> current_ GUARDED_BY(mu_);
  Status status_ GUARDED_BY(mu_);
  bool over_ GUARDED_BY(mu_) = false;
  std::uint64_t connects_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
