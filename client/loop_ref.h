#pragma once

// LoopRef: how sessions, leases and views reach the client's loop, which may end before they do.
//
// Shared by the client and all its sessions. Any thread. The client cuts it after the loop has
// stopped and before it goes; from then on tasks are dropped.

#include <utility>

#include "common/mutex.h"
#include "transport/event_loop.h"

namespace kvfabric {

class LoopRef {
 public:
  explicit LoopRef(EventLoop& loop) : loop_(&loop) {}
  LoopRef(const LoopRef&) = delete;  // one client, one cut
  LoopRef& operator=(const LoopRef&) = delete;

  // False: the loop refuses or is gone; the task is dropped.
  [[nodiscard]] bool Submit(Task task) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return loop_ != nullptr && loop_->Submit(std::move(task));
  }
  void Cut() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    loop_ = nullptr;
  }

 private:
  Mutex mu_;
  EventLoop* loop_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
