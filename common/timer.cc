#include "common/timer.h"

#include <pthread.h>

#include <algorithm>

namespace kvfabric {

Timer::Timer(const Clock& clock) : clock_(clock), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "timer");
}

Timer::~Timer() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

Timer::Id Timer::At(Clock::TimePoint when, std::function<void()> task) {
  return Add(when, {std::move(task), {}});
}

Timer::Id Timer::After(Clock::Duration delay, std::function<void()> task) {
  return Add(clock_.Now() + delay, {std::move(task), {}});
}

Timer::Id Timer::Every(Clock::Duration period, std::function<void()> task) {
  return Add(clock_.Now() + period, {std::move(task), period});
}

Timer::Id Timer::Add(Clock::TimePoint when, Entry entry) {
  Id id = 0;
  bool first = false;
  {
    MutexLock lock(mu_);
    id = next_id_++;
    first = queue_.empty() || when < queue_.begin()->first.first;
    queue_.emplace(Key{when, id}, std::move(entry));
    when_.emplace(id, when);
  }
  if (first) wake_.NotifyOne();
  return id;
}

bool Timer::Cancel(Id id) {
  MutexLock lock(mu_);
  if (running_ == id) running_cancelled_ = true;
  const auto found = when_.find(id);
  if (found == when_.end()) return false;
  queue_.erase(Key{found->second, id});
  when_.erase(found);
  return true;
}

void Timer::CancelAndWait(Id id) {
  static_cast<void>(Cancel(id));
  MutexLock lock(mu_);
  while (running_ == id) idle_.Wait(mu_);
}

void Timer::Run() {
  mu_.Lock();
  while (!stopping_) {
    if (queue_.empty()) {
      wake_.Wait(mu_);
      continue;
    }
    const Key key = queue_.begin()->first;
    if (key.first > clock_.Now()) {
      // A fake clock does not move the condition variable: look again soon.
      const auto cap = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
      static_cast<void>(wake_.WaitUntil(mu_, std::min(key.first, cap)));
      continue;
    }
    Entry entry = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    when_.erase(key.second);
    running_ = key.second;
    running_cancelled_ = false;
    mu_.Unlock();
    entry.task();
    mu_.Lock();
    if (entry.period > Clock::Duration::zero() && !running_cancelled_ && !stopping_) {
      const auto next = std::max(key.first + entry.period, clock_.Now());
      queue_.emplace(Key{next, key.second}, std::move(entry));
      when_.emplace(key.second, next);
    }
    running_ = 0;
    idle_.NotifyAll();
  }
  mu_.Unlock();
}

}  // namespace kvfabric
