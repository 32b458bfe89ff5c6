#include "operator/kube/stream_task.h"

#include <algorithm>
#include <utility>

#include "operator/kube/api_error.h"
#include "operator/kube/api_responses.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxRefusalBytes = std::size_t{1} << 20U;

Status StoppedStatus() { return Unavailable("api client: it was stopped"); }

}  // namespace

StreamTask::StreamTask(std::shared_ptr<ApiSession> session, ApiVerb verb,
                       std::function<void()> on_ready)
    : session_(std::move(session)),
      verb_(verb),
      deadline_(std::chrono::steady_clock::now() + session_->options().list_timeout),
      on_ready_(std::move(on_ready)) {}

// Told that it ends when it is dropped unused, with the session's thread.
class StreamTask::Ticket {
 public:
  explicit Ticket(std::shared_ptr<StreamTask> task) : task_(std::move(task)) {}
  ~Ticket() {
    if (task_ != nullptr) task_->Finish(StoppedStatus());
  }
  Ticket(const Ticket&) = delete;  // would tell twice
  Ticket& operator=(const Ticket&) = delete;
  void Use() { std::exchange(task_, nullptr)->Open(); }

 private:
  std::shared_ptr<StreamTask> task_;
};

void StreamTask::Reopen(milliseconds wait) {
  session_->Later(wait, [ticket = std::make_shared<Ticket>(shared_from_this())] { ticket->Use(); });
}

bool StreamTask::detached() const {
  MutexLock lock(mu_);
  return detached_;
}

void StreamTask::Open() {
  if (detached()) return;
  Result<Proof> proof = session_->Prove();
  if (!proof.ok()) return Finish(proof.status());
  proof_ = std::move(proof).value();
  head_ = {};
  refusal_.clear();
  broken_ = Status::Ok();
  ++tries_;
  began_ = std::chrono::steady_clock::now();
  HttpRequest request;
  request.method = "GET";
  request.target = Target();
  request.authorization = proof_.authorization;
  request.tls = proof_.tls;
  request.silence = session_->options().silence;
  bool failed = false;
  {
    // Held, so that the transfer's first bytes find its number.
    MutexLock lock(mu_);
    if (detached_) return;
    const Result<std::uint64_t> started =
        session_->transport().Start(std::move(request), shared_from_this());
    failed = !started.ok();
    if (!failed) transfer_ = *started;
  }
  if (failed) Finish(StoppedStatus());
}

void StreamTask::Detach() {
  {
    MutexLock lock(ready_mu_);
    on_ready_ = nullptr;
  }
  MutexLock lock(mu_);
  detached_ = true;
  if (transfer_ != 0) session_->transport().Cancel(transfer_);
}

void StreamTask::OnHead(const HttpHead& head) {
  head_ = head;
  session_->metrics().Requested(verb_, head.code, std::chrono::steady_clock::now() - began_);
  if (head.code != 200) return;
  // Before anything of a page that no API server wrote is given away.
  broken_ = CheckAnswer("api " + session_->options().target.server, head_, "");
  Begin();
}

HttpTake StreamTask::OnBody(std::string_view bytes) {
  if (head_.code != 200) {
    refusal_.append(
        bytes.substr(0, kMaxRefusalBytes - std::min(refusal_.size(), kMaxRefusalBytes)));
    return HttpTake::kTaken;
  }
  if (!broken_.ok()) return HttpTake::kStop;
  {
    MutexLock lock(mu_);
    if (detached_) return HttpTake::kStop;
    paused_ = held_bytes_ >= session_->options().buffer_bytes;
    if (paused_) return HttpTake::kPause;
  }
  broken_ = Take(bytes);
  return broken_.ok() ? HttpTake::kTaken : HttpTake::kStop;
}

void StreamTask::OnEnd(const HttpEnd& end) {
  {
    MutexLock lock(mu_);
    transfer_ = 0;
    if (detached_) return;
  }
  const bool whole = end.fault == HttpFault::kNone;
  const auto now = std::chrono::steady_clock::now();
  if (head_.code == 0) session_->metrics().Requested(verb_, 0, now - began_);
  if (whole && head_.code == 401 && !proved_again_ && session_->credentials().Reject(proof_)) {
    proved_again_ = true;
    return Reopen(milliseconds(0));
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - now);
  if (MayRetry()) {
    if (const auto wait = session_->WaitBefore(head_, end.fault, true, tries_, left)) {
      return Reopen(*wait);
    }
  }
  if (!broken_.ok()) return Ended(broken_, end.fault);
  if (!whole && end.fault == HttpFault::kStopped) {
    return Ended(StoppedStatus(), end.fault);
  }
  if (!whole) return Ended(end.status, end.fault);
  tries_ = 0;
  proved_again_ = false;
  const Status answer = CheckAnswer("api " + session_->options().target.server, head_, refusal_);
  if (answer.ok() && head_.code != 200) {
    return Ended(Unavailable("api: answered " + std::to_string(head_.code) + " to a GET"),
                 HttpFault::kOther);
  }
  Ended(answer, HttpFault::kNone);
}

void StreamTask::Drained() {
  held_bytes_ = 0;
  if (std::exchange(paused_, false)) session_->transport().Resume(transfer_);
}

void StreamTask::Finish(Status status) {
  {
    MutexLock lock(mu_);
    finished_ = std::move(status);
  }
  Notify();
}

void StreamTask::Notify() {
  MutexLock lock(ready_mu_);
  if (on_ready_) on_ready_();
}

}  // namespace kvfabric::kube
