#pragma once

// ElasticTasks: the threads of an HTTP server some of whose requests last long. A task is a
// connection, which holds its thread while it is idle too. Ordinary ones are bounded in number; one
// that says it will last no longer counts among them, so that long ones never starve the others,
// up to a bound of their own.
//
// A full queue holds up the accepting thread, as BoundedTasks does. Threads are made when they are
// needed and stay until Shutdown.

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace kvfabric::kube {

class ElasticTasks {
 public:
  struct Limits {
    std::size_t threads = 64;      // ordinary tasks at once
    std::size_t max_waiting = 64;  // behind them
    std::size_t max_long = 64;
  };

  explicit ElasticTasks(Limits limits) : limits_(limits) {}
  ~ElasticTasks() { Shutdown(); }
  ElasticTasks(const ElasticTasks&) = delete;  // owns threads
  ElasticTasks& operator=(const ElasticTasks&) = delete;

  void Enqueue(std::function<void()> task) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (tasks_.size() >= limits_.max_waiting) changed_.Wait(mu_);
    tasks_.push_back(std::move(task));
    Grow();
    changed_.NotifyAll();
  }

  // Called by a running task that will last; EndLong when it is over. False: there are too many.
  bool BeginLong() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopping_ || long_ == limits_.max_long) return false;
    ++long_;
    Grow();
    changed_.NotifyAll();
    return true;
  }
  void EndLong() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    --long_;
  }

  // Runs what is queued, joins. Nothing may be enqueued any more. Again: nothing happens.
  void Shutdown() EXCLUDES(mu_) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      threads = std::move(threads_);
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void Grow() REQUIRES(mu_) {
    if (stopping_ || tasks_.size() <= idle_) return;
    if (threads_.size() < limits_.threads + long_) threads_.emplace_back([this] { Run(); });
  }
  bool MayTake() const REQUIRES(mu_) {
    return !tasks_.empty() && (stopping_ || busy_ - long_ < limits_.threads);
  }
  void Run() EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mu_);
        ++idle_;
        while (!MayTake() && !(stopping_ && tasks_.empty())) changed_.Wait(mu_);
        --idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        ++busy_;
        changed_.NotifyAll();
      }
      task();
      MutexLock lock(mu_);
      --busy_;
      changed_.NotifyAll();
    }
  }

  const Limits limits_;
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  std::vector<std::thread> threads_ GUARDED_BY(mu_);
  std::size_t idle_ GUARDED_BY(mu_) = 0;  // threads that wait for a task
  std::size_t busy_ GUARDED_BY(mu_) = 0;  // threads in a task
  std::size_t long_ GUARDED_BY(mu_) = 0;  // of these, those that last
  bool stopping_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric::kube
