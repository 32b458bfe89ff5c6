#pragma once

// StreamOutbox: messages waiting to go out on one gRPC stream, which takes one at a time, and the
// guard that nothing is started on a stream that has ended.
//
// Shared by the stream's reactor and by whoever answers it; any thread. The reactor calls
// OnWriteDone from its reaction and Detach from OnDone; after Detach every call does nothing.
// Bounded: at `max_queued` messages Send refuses, and the caller ends the stream or drops.
// A template so that no gRPC header is needed: Reactor has StartRead, StartWrite.

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "common/mutex.h"

namespace kvfabric {

template <typename Reactor, typename In, typename Out>
class StreamOutbox {
 public:
  // How the stream is ended: Finish(status) on servers, TryCancel on clients.
  using End = std::function<void(Reactor&)>;

  StreamOutbox(Reactor& reactor, std::size_t max_queued)
      : max_queued_(max_queued), reactor_(&reactor) {}
  StreamOutbox(const StreamOutbox&) = delete;  // one writer a stream
  StreamOutbox& operator=(const StreamOutbox&) = delete;

  // `urgent` overtakes what waits. False when the stream has ended or the queue is full.
  bool Send(Out message, bool urgent = false) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (reactor_ == nullptr || end_ != nullptr || queue_.size() >= max_queued_) return false;
    if (urgent) {
      queue_.push_front(std::move(message));
    } else {
      queue_.push_back(std::move(message));
    }
    WriteNext();
    return true;
  }

  bool StartRead(In* into) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (reactor_ == nullptr || end_ != nullptr) return false;
    reactor_->StartRead(into);
    return true;
  }

  void OnWriteDone(bool ok) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) queue_.clear();  // the stream is broken: its read fails as well
    if (reactor_ == nullptr) return;
    if (end_ != nullptr && (queue_.empty() || !drain_)) {
      EndNow();
      return;
    }
    WriteNext();
  }

  // Ends the stream, once: after what is queued has gone out with `drain`, else after the write
  // under way.
  void Finish(End end, bool drain = false) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (reactor_ == nullptr || end_ != nullptr) return;
    end_ = std::move(end);
    drain_ = drain;
    if (!drain) queue_.clear();
    if (!writing_) EndNow();
  }

  // Runs `what` on the reactor unless the stream is done, e.g. to cancel it though a write hangs.
  template <typename F>
  void With(F what) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (reactor_ != nullptr) what(*reactor_);
  }

  bool ended() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return reactor_ == nullptr || end_ != nullptr;
  }

  // Messages that wait behind the one being written.
  std::size_t queued() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return queue_.size();
  }

  void Detach() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    reactor_ = nullptr;
    queue_.clear();
  }

 private:
  void WriteNext() REQUIRES(mu_) {
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    current_ = std::move(queue_.front());
    queue_.pop_front();
    reactor_->StartWrite(&current_);
  }
  void EndNow() REQUIRES(mu_) {
    queue_.clear();
    if (ended_now_) return;
    ended_now_ = true;
    end_(*reactor_);
  }

  const std::size_t max_queued_;
  mutable Mutex mu_;
  Reactor* reactor_ GUARDED_BY(mu_);  // borrowed; null once the stream is done
  std::deque<Out> queue_ GUARDED_BY(mu_);
  Out current_ GUARDED_BY(mu_);  // stays until its write is done
  bool writing_ GUARDED_BY(mu_) = false;
  End end_ GUARDED_BY(mu_);
  bool drain_ GUARDED_BY(mu_) = false;
  bool ended_now_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
