#include "common/executor.h"

#include <pthread.h>

#include <utility>

namespace kvfabric {

WorkerPool::WorkerPool(std::string name, std::size_t threads, std::size_t max_queued)
    : name_(std::move(name)), max_queued_(max_queued) {
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    // The kernel keeps 15 characters; enough to tell pools apart in top -H.
    pthread_setname_np(threads_.back().native_handle(), name_.substr(0, 15).c_str());
  }
}

WorkerPool::~WorkerPool() { Shutdown(); }

bool WorkerPool::Submit(Task task) {
  {
    MutexLock lock(mu_);
    if (stopping_ || queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
  return true;
}

std::size_t WorkerPool::queued() const {
  MutexLock lock(mu_);
  return queue_.size();
}

void WorkerPool::Shutdown() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Run() {
  for (;;) {
    Task task;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stopping_) wake_.Wait(mu_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace kvfabric
