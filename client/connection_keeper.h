#pragma once

// ConnectionKeeper: keeps a client connected to one agent of an ordered list: the first that
// answers, and back to an earlier one when it is there again.
//
// Owned by the client; everything but Current and Status runs on the client's loop. An agent that
// went away is replaced by the next of the list at once; when none answers the round is repeated
// after kRetryFirst, doubling to kRetryMost. An agent that does not know the pool counts as one
// that does not answer, asked again every kRetryMost.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/session.h"
#include "common/mutex.h"

namespace kvfabric {

class ConnectionKeeper : public std::enable_shared_from_this<ConnectionKeeper> {
 public:
  static constexpr std::chrono::milliseconds kRetryFirst{50};
  static constexpr std::chrono::milliseconds kRetryMost{1000};
  static constexpr std::chrono::milliseconds kProbeEarlierEvery{1000};

  // `base` is completed with each endpoint's address and index.
  ConnectionKeeper(EventLoop& loop, std::vector<SocketAddress> endpoints, Session::Options base);

  void Start();
  // Closes the session and makes no new one. On the loop.
  void Stop();

  // Null while there is none. Any thread.
  std::shared_ptr<Session> Current() const EXCLUDES(mu_);
  // Waits for a session; null when none came by the deadline. Any thread but the loop's.
  std::shared_ptr<Session> WaitForCurrent(Deadline deadline) const EXCLUDES(mu_);
  // Why there is no session; OK while there is one. Any thread.
  Status status() const EXCLUDES(mu_);
  std::uint64_t connects() const EXCLUDES(mu_);

 private:
  // Tries endpoints first, first + 1, ... `left` of them, in a circle.
  void Try(std::size_t first, std::size_t left);
  void OnOpened(std::size_t first, std::size_t left, std::shared_ptr<Session> session,
                const Status& status);
  void OnSessionClosed(const std::shared_ptr<Session>& session, const Status& why);
  void Adopt(std::shared_ptr<Session> session) EXCLUDES(mu_);
  void RetryLater();
  void ProbeEarlier();

  EventLoop& loop_;  // borrowed; outlives this
  const std::vector<SocketAddress> endpoints_;
  const Session::Options base_;

  // Loop thread.
  bool trying_ = false;
  bool stopped_ = false;
  EventLoop::TimerId timer_ = 0;
  std::chrono::milliseconds backoff_ = kRetryFirst;

  mutable Mutex mu_;
  mutable CondVar changed_;
  std::shared_ptr<Session> current_ GUARDED_BY(mu_);
  Status status_ GUARDED_BY(mu_);
  std::uint64_t connects_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
