#pragma once

// ManualExecutor: holds tasks until a test runs them, in order or not. Any thread.

#include <deque>
#include <utility>

#include "common/executor.h"

namespace kvfabric {

class ManualExecutor final : public Executor {
 public:
  [[nodiscard]] bool Submit(Task task) override {
    MutexLock lock(mu_);
    tasks_.push_back(std::move(task));
    return true;
  }
  std::size_t pending() const {
    MutexLock lock(mu_);
    return tasks_.size();
  }
  // Runs the oldest task; false when there is none.
  bool RunOne() {
    Task task;
    {
      MutexLock lock(mu_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }
  // Runs tasks, and those they submit, until none is left.
  std::size_t RunAll() {
    std::size_t ran = 0;
    while (RunOne()) ++ran;
    return ran;
  }

 private:
  mutable Mutex mu_;
  std::deque<Task> tasks_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
