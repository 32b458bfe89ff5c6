#pragma once

// SerialQueue: tasks of one session, one after the other, on an executor of many threads. Shared
// by whoever submits and by the executor; any thread. Bounded: Submit refuses above `max_queued`.

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "common/executor.h"
#include "common/mutex.h"

namespace kvfabric {

class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  SerialQueue(Executor& executor, std::size_t max_queued)
      : executor_(executor), max_queued_(max_queued) {}

  // False: at the bound, the task was dropped. When the executor is full the caller's thread does
  // the work: who sends too much is slowed down.
  [[nodiscard]] bool Submit(Task task) { return Add(std::move(task), max_queued_); }
  // The session's last task: there is always room for it.
  void SubmitLast(Task task) { Add(std::move(task), max_queued_ + 1); }

 private:
  bool Add(Task task, std::size_t limit) EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (tasks_.size() >= limit) return false;
      tasks_.push_back(std::move(task));
      if (running_) return true;
      running_ = true;
    }
    RunNext();
    return true;
  }
  Task Next() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (tasks_.empty()) return nullptr;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  void RunNext() {
    if (!executor_.Submit([self = shared_from_this()] { self->RunOne(); })) RunAll();
  }
  // One task a turn, so that sessions share the threads.
  void RunOne() EXCLUDES(mu_) {
    if (const Task task = Next(); task != nullptr) task();
    if (HasMore()) RunNext();
  }
  void RunAll() EXCLUDES(mu_) {
    do {
      if (const Task task = Next(); task != nullptr) task();
    } while (HasMore());
  }
  bool HasMore() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    running_ = !tasks_.empty();
    return running_;
  }

  Executor& executor_;
  const std::size_t max_queued_;
  Mutex mu_;
  std::deque<Task> tasks_ GUARDED_BY(mu_);
  bool running_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
