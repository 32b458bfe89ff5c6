#pragma once

// Leash ties tasks that wait on an executor to an object that may go first: after Cut() none of
// them runs, now or later. Any thread; Cut not from one of the tasks. The owner cuts it first thing
// in its destructor.

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "common/mutex.h"

namespace kvfabric {

class Leash {
 public:
  Leash() : state_(std::make_shared<State>()) {}
  ~Leash() { Cut(); }
  Leash(const Leash&) = delete;  // two owners would cut each other's tasks
  Leash& operator=(const Leash&) = delete;

  // `task`, as long as the leash holds; nothing afterwards.
  std::function<void()> Bind(std::function<void()> task) {
    return [state = state_, task = std::move(task)] {
      {
        MutexLock lock(state->mu);
        if (state->cut) return;
        ++state->running;
      }
      task();
      MutexLock lock(state->mu);
      if (--state->running == 0) state->idle.NotifyAll();
    };
  }

  // Waits for those that run now.
  void Cut() {
    MutexLock lock(state_->mu);
    state_->cut = true;
    while (state_->running > 0) state_->idle.Wait(state_->mu);
  }

 private:
  struct State {
    Mutex mu;
    CondVar idle;
    bool cut GUARDED_BY(mu) = false;
    std::size_t running GUARDED_BY(mu) = 0;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace kvfabric
