#pragma once

// PeerSession: one link's session over time: attempts to open it, requests under way, judgement.
// Everything that is not gRPC. The stream of the moment is behind PeerStream, so that the state
// machine stands alone.
//
// Shared by the link, the streams it had, and timers; any thread. Every request completes exactly
// once, outside the lock.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "agent/cluster/peer_link.h"
#include "agent/service/bulk_client.h"
#include "common/mutex.h"
#include "common/timer.h"

namespace kvfabric::v1 {
class PeerReply;
class PeerRequest;
}  // namespace kvfabric::v1

namespace kvfabric {

// One stream to the peer; answers through PeerSession::OnReply and OnStreamEnd.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  // False when the stream has ended or too much waits.
  virtual bool Send(const v1::PeerRequest& request, bool urgent) = 0;
  virtual void Cancel() = 0;
};

class PeerSession : public std::enable_shared_from_this<PeerSession> {
 public:
  using OnAnswer = std::function<void(Result<const v1::PeerReply*>)>;
  struct Options {
    PeerIdentity self;
    PeerAddress peer;
    std::chrono::milliseconds keepalive{250};
    std::chrono::milliseconds down_after{1'000};
    std::chrono::milliseconds first_retry{100};
    std::chrono::milliseconds last_retry{1'000};
    std::size_t max_requests = 65'536;
    // Opens a stream whose events carry `generation`.
    std::function<std::shared_ptr<PeerStream>(std::shared_ptr<PeerSession>,
                                              std::uint64_t generation)>
        open_stream;
  };
  struct Environment {
    Timer* timer = nullptr;      // deadlines and retries
    Timer* keepalive = nullptr;  // nothing else
    const Clock* clock = nullptr;
    Counter* lost = nullptr;
    std::shared_ptr<BulkClient> bulk;
  };

  PeerSession(Options options, const Environment& environment);

  void Start();
  void Close() EXCLUDES(mu_);  // ends all; UNAVAILABLE to what is under way

  bool up() const EXCLUDES(mu_);
  PeerIdentity identity() const EXCLUDES(mu_);
  KeepaliveState peer_state() const EXCLUDES(mu_);

  // `done` gets a reply whose code is OK, or why not.
  void Ask(v1::PeerRequest& request, Deadline deadline, OnAnswer done) EXCLUDES(mu_);
  // Wants no answer.
  void Tell(const v1::PeerRequest& request) EXCLUDES(mu_);

  // From the stream.
  void OnReply(std::uint64_t generation, const v1::PeerReply& reply) EXCLUDES(mu_);
  void OnStreamEnd(std::uint64_t generation, const Status& why) EXCLUDES(mu_);

 private:
  struct Pending {
    OnAnswer done;
    Timer::Id timer = 0;
  };
  using PendingMap = std::unordered_map<std::uint64_t, Pending>;

  void OpenStream() EXCLUDES(mu_);
  void OnHello(std::uint64_t generation, const v1::PeerReply& reply) EXCLUDES(mu_);
  void OnLateReply(const v1::PeerReply& reply) EXCLUDES(mu_);
  void Expire(std::uint64_t request_id) EXCLUDES(mu_);
  void SendKeepalive() EXCLUDES(mu_);
  void Judge(std::uint64_t generation) EXCLUDES(mu_);
  void ScheduleJudgement(std::uint64_t generation, Clock::TimePoint at);
  void GoDown(std::uint64_t generation, const Status& why) EXCLUDES(mu_);
  void FailAll(PendingMap pending, const Status& why);

  const Options options_;
  const Environment environment_;

  mutable Mutex mu_;
  bool closed_ GUARDED_BY(mu_) = false;
  bool up_ GUARDED_BY(mu_) = false;
  std::uint64_t generation_ GUARDED_BY(mu_) = 0;  // of the stream of the moment
  std::shared_ptr<PeerStream> stream_ GUARDED_BY(mu_);
  Clock::TimePoint last_answer_ GUARDED_BY(mu_);
  std::chrono::milliseconds retry_ GUARDED_BY(mu_){0};
  PeerIdentity identity_ GUARDED_BY(mu_);
  KeepaliveState peer_state_ GUARDED_BY(mu_);
  std::uint64_t next_request_ GUARDED_BY(mu_) = 1;
  PendingMap pending_ GUARDED_BY(mu_);
  Timer::Id keepalive_timer_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
