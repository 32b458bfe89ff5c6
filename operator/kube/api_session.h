#pragma once

// ApiSession: everything the calls and streams of one HttpKube share: transports, credentials,
// metrics, the policy of trying again, and the thread that waits between tries of streams.
//
// Shared by HttpKube and its streams, so that either may go first. Any thread. Stop ends every call
// and stream at once, and all threads; HttpKube calls it before it lets go.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/timer.h"
#include "operator/kube/api_metrics.h"
#include "operator/kube/credentials.h"
#include "operator/kube/http_kube.h"
#include "operator/kube/http_transport.h"

namespace kvfabric::kube {

// One request in the API's words.
struct ApiCall {
  ApiVerb verb = ApiVerb::kGet;
  std::string target;
  std::string body;
  std::string content_type;
  bool repeatable = true;  // may be sent again when it is not known whether it was done
  bool lease = false;      // over the connection that nothing else uses
};

class ApiSession : public std::enable_shared_from_this<ApiSession> {
 public:
  // A call that is under way: Stop waits for it to leave.
  class Visit {
   public:
    explicit Visit(ApiSession& session);
    ~Visit();
    Visit(const Visit&) = delete;  // would leave twice
    Visit& operator=(const Visit&) = delete;

   private:
    const std::shared_ptr<ApiSession> session_;
  };

  static Result<std::shared_ptr<ApiSession>> Create(HttpKube::Options options);
  explicit ApiSession(HttpKube::Options options);
  ~ApiSession();
  ApiSession(const ApiSession&) = delete;  // owns threads
  ApiSession& operator=(const ApiSession&) = delete;

  // Blocks at most for `budget`, tries included. The body of a 2xx; an error carries an ApiDetail
  // when the API made it.
  Result<std::string> Call(const ApiCall& call, std::chrono::milliseconds budget) EXCLUDES(mu_);
  void Stop() EXCLUDES(mu_);

  const HttpKube::Options& options() const { return options_; }
  ApiMetrics& metrics() { return metrics_; }
  HttpTransport& transport() { return *transport_; }
  // As Credentials::Get, with its metric.
  Result<Proof> Prove();
  Credentials& credentials() { return *credentials_; }

  // The wait before another try of what was answered like this; nullopt: no other try. `tries` =
  // those made, `left` = of the caller's time.
  std::optional<std::chrono::milliseconds> WaitBefore(const HttpHead& head, HttpFault fault,
                                                      bool repeatable, int tries,
                                                      std::chrono::milliseconds left) EXCLUDES(mu_);
  // Runs it on the session's own thread, which it may block (a credential plugin). Dropped when
  // the session ends.
  void Later(std::chrono::milliseconds delay, std::function<void()> task) EXCLUDES(mu_);
  std::chrono::seconds RandomWatchTimeout() EXCLUDES(mu_);

  // Lists whose continue token expired are asked for whole until that worked.
  bool IsUnpaged(const std::string& list) const EXCLUDES(mu_);
  void SetUnpaged(const std::string& list, bool unpaged) EXCLUDES(mu_);

 private:
  // A place among max_calls.
  Status TakePlace(Clock::TimePoint deadline) EXCLUDES(mu_);
  void LeavePlace() EXCLUDES(mu_);
  Result<std::string> Try(const ApiCall& call, Clock::TimePoint deadline) EXCLUDES(mu_);
  Status Pause(std::chrono::milliseconds wait) EXCLUDES(mu_);
  double Random() REQUIRES(mu_);

  const HttpKube::Options options_;
  ApiMetrics metrics_;
  std::unique_ptr<Credentials> credentials_;  // these three: constant after Create
  std::unique_ptr<HttpTransport> transport_;
  std::unique_ptr<HttpTransport> leases_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mu_) = false;
  std::size_t calls_ GUARDED_BY(mu_) = 0;  // that count against max_calls
  std::size_t visits_ GUARDED_BY(mu_) = 0;
  std::mt19937_64 random_ GUARDED_BY(mu_);
  std::set<std::string> unpaged_ GUARDED_BY(mu_);
  // Gone after Stop, so that whoever holds the session last need not be able to join threads.
  std::unique_ptr<Timer> timer_ GUARDED_BY(mu_);
};

// The Status of a whole answer; UNAVAILABLE when a good one is not JSON.
Status CheckAnswer(const std::string& where, const HttpHead& head, std::string_view body);

const char* MethodOf(ApiVerb verb);
// `a=b&c=d` of what is not empty, percent-encoded; with `?` in front, or "".
std::string Query(std::initializer_list<std::pair<const char*, std::string>> parameters);

}  // namespace kvfabric::kube
