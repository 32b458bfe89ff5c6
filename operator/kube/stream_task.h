#pragma once

// StreamTask: one list or watch in progress, from the request to its end. Private to HttpKube: the
// streams it gives out each hold one, and end it by Detach.
//
// The session's own thread opens requests (credentials may block), the transport's thread frames
// and decodes what comes, any thread polls. `mu_` guards what passes between them. on_ready is
// called under `ready_mu_` only: Detach waits for a call that runs, Poll does not.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/mutex.h"
#include "operator/kube/api_session.h"
#include "operator/kube/http_transport.h"

namespace kvfabric::kube {

class StreamTask : public HttpListener, public std::enable_shared_from_this<StreamTask> {
 public:
  StreamTask(std::shared_ptr<ApiSession> session, ApiVerb verb, std::function<void()> on_ready);
  StreamTask(const StreamTask&) = delete;  // a transfer points to it
  StreamTask& operator=(const StreamTask&) = delete;

  // Once, when it is held by a shared_ptr.
  void Start() { Reopen(std::chrono::milliseconds(0)); }
  // Ends it; on_ready is not called again.
  void Detach() EXCLUDES(mu_, ready_mu_);

  void OnHead(const HttpHead& head) final;
  HttpTake OnBody(std::string_view bytes) final EXCLUDES(mu_);
  void OnEnd(const HttpEnd& end) final;

 protected:
  // Of the next request. The session's thread.
  virtual std::string Target() = 0;
  // The body of a 200. The transport's thread, as the rest of these.
  virtual void Begin() = 0;
  virtual Status Take(std::string_view bytes) = 0;
  // The request has ended: the answer was whole (OK), or why not. Calls Reopen or Finish.
  virtual void Ended(const Status& status, HttpFault fault) = 0;
  // Another try is harmless: nothing of this answer has been given away.
  virtual bool MayRetry() const = 0;

  // Of all requests together.
  bool OutOfTime() const { return std::chrono::steady_clock::now() >= deadline_; }
  // Opens another request after a wait.
  void Reopen(std::chrono::milliseconds wait);
  // `bytes` are now held for Poll.
  void Hold(std::size_t bytes) REQUIRES(mu_) { held_bytes_ += bytes; }
  // Poll took everything.
  void Drained() REQUIRES(mu_);
  // Poll answers this once it has given what there is.
  void Finish(Status status) EXCLUDES(mu_);
  void Notify() EXCLUDES(ready_mu_);

  const std::shared_ptr<ApiSession> session_;
  mutable Mutex mu_;
  std::optional<Status> finished_ GUARDED_BY(mu_);

 private:
  class Ticket;
  void Open() EXCLUDES(mu_);
  bool detached() const EXCLUDES(mu_);

  const ApiVerb verb_;
  const std::chrono::steady_clock::time_point deadline_;

  Mutex ready_mu_;
  std::function<void()> on_ready_ GUARDED_BY(ready_mu_);

  std::uint64_t transfer_ GUARDED_BY(mu_) = 0;  // 0: none is under way
  std::size_t held_bytes_ GUARDED_BY(mu_) = 0;
  bool paused_ GUARDED_BY(mu_) = false;
  bool detached_ GUARDED_BY(mu_) = false;

  // Of the request under way: the session's thread sets them up, then they are the transport's.
  Proof proof_;
  HttpHead head_;
  std::string refusal_;  // body of what is not a 200
  Status broken_;        // why we ended it ourselves
  std::chrono::steady_clock::time_point began_;
  int tries_ = 0;
  bool proved_again_ = false;
};

}  // namespace kvfabric::kube
