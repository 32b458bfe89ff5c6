#pragma once

// Executor: where a completion runs. WorkerPool: a named, bounded pool of threads that is one.
// (The other implementation is transport/event_loop.h; tests use tests/fakes/manual_executor.h.)

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace kvfabric {

using Task = std::function<void()>;

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` later, never inside this call. False when the queue is full or shut down: the
  // task is dropped and the caller says so to whoever waits.
  [[nodiscard]] virtual bool Submit(Task task) = 0;
};

// Runs tasks on `threads` threads in submission order. Any thread may submit. The destructor
// runs what is queued, then joins.
class WorkerPool final : public Executor {
 public:
  WorkerPool(std::string name, std::size_t threads, std::size_t max_queued);
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;  // threads cannot be shared
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] bool Submit(Task task) override EXCLUDES(mu_);
  std::size_t queued() const EXCLUDES(mu_);
  // Refuses new work, runs what is queued, joins. Idempotent; not from a pool thread.
  void Shutdown() EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);

  const std::string name_;
  const std::size_t max_queued_;
  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Task> queue_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // touched by constructor and Shutdown only
};

}  // namespace kvfabric
