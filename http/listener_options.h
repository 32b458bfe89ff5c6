#pragma once

// What every HTTP server of ours is set up with: a bounded task queue, and a listening socket that
// refuses a port in use. Free of cpp-httplib: servers wrap BoundedTasks in its TaskQueue.

#include <sys/socket.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace kvfabric {

// cpp-httplib's own pool has no bound. Here a full queue holds up the accepting thread, so that
// the kernel's backlog is the next bound and no socket is lost.
class BoundedTasks {
 public:
  BoundedTasks(std::size_t threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  BoundedTasks(const BoundedTasks&) = delete;  // owns threads
  BoundedTasks& operator=(const BoundedTasks&) = delete;

  void Enqueue(std::function<void()> task) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (tasks_.size() >= max_waiting_) changed_.Wait(mu_);
    tasks_.push_back(std::move(task));
    changed_.NotifyAll();
  }

  // Runs what is queued, joins. Once, before the destructor.
  void Shutdown() EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Run() EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mu_);
        while (tasks_.empty() && !stopping_) changed_.Wait(mu_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        changed_.NotifyAll();
      }
      task();
    }
  }

  const std::size_t max_waiting_;
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // touched by constructor and Shutdown only
};

inline void ReuseAddressOnly(int socket) {
  // Not SO_REUSEPORT, cpp-httplib's default: with it a port in use would go unnoticed.
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

}  // namespace kvfabric
