#pragma once

// Timer runs tasks at points in time on one thread: deadlines, announcements, keepalives.
// Owned by main or a test; any thread may call. Tasks must be short: they share the thread.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric {

class Timer {
 public:
  using Id = std::uint64_t;

  explicit Timer(const Clock& clock);
  ~Timer();                      // drops what has not run, joins
  Timer(const Timer&) = delete;  // owns a thread
  Timer& operator=(const Timer&) = delete;

  Id At(Clock::TimePoint when, std::function<void()> task) EXCLUDES(mu_);
  Id After(Clock::Duration delay, std::function<void()> task) EXCLUDES(mu_);
  // Runs `task` every `period` until cancelled; missed ticks are not made up for.
  Id Every(Clock::Duration period, std::function<void()> task) EXCLUDES(mu_);
  // False when it already ran or is running now. Never waits, so a task may cancel itself.
  bool Cancel(Id id) EXCLUDES(mu_);
  // As Cancel, and if the task is running on the timer thread, waits for it to end.
  // Not from a task.
  void CancelAndWait(Id id) EXCLUDES(mu_);

 private:
  struct Entry {
    std::function<void()> task;
    Clock::Duration period{};
  };
  using Key = std::pair<Clock::TimePoint, Id>;

  Id Add(Clock::TimePoint when, Entry entry) EXCLUDES(mu_);
  void Run() EXCLUDES(mu_);

  const Clock& clock_;  // borrowed; outlives this
  Mutex mu_;
  CondVar wake_;
  CondVar idle_;
  std::map<Key, Entry> queue_ GUARDED_BY(mu_);
  std::map<Id, Clock::TimePoint> when_ GUARDED_BY(mu_);
  Id next_id_ GUARDED_BY(mu_) = 1;
  Id running_ GUARDED_BY(mu_) = 0;
  bool running_cancelled_ GUARDED_BY(mu_) = false;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kvfabric
