#include "cli/replay_clock.h"

#include <algorithm>

namespace kvfabric::cli {

Clock::TimePoint ReplayClock::DueAt(double trace_s) const {
  return start_ + std::chrono::duration_cast<Clock::Duration>(
                      std::chrono::duration<double>(trace_s / speed_));
}

double ReplayClock::TraceSeconds() {
  if (speed_ > 0) return WallSeconds() * speed_;
  const MutexLock lock(mu_);
  return begun_s_;
}

double ReplayClock::Begin(double trace_s, bool* go) {
  const MutexLock lock(mu_);
  if (speed_ <= 0) {
    begun_s_ = std::max(begun_s_, trace_s);
    moved_.NotifyAll();
    *go = !stopped_;
    return 0;
  }
  const Clock::TimePoint due = DueAt(trace_s);
  while (!stopped_ && clock_.Now() < due) moved_.WaitUntil(mu_, due);
  *go = !stopped_;
  return std::chrono::duration<double>(clock_.Now() - due).count();
}

bool ReplayClock::WaitFor(double trace_s) {
  const MutexLock lock(mu_);
  if (speed_ > 0) {
    const Clock::TimePoint due = DueAt(trace_s);
    while (!stopped_ && clock_.Now() < due) moved_.WaitUntil(mu_, due);
    return clock_.Now() >= due;
  }
  while (!stopped_ && begun_s_ < trace_s) moved_.Wait(mu_);
  return begun_s_ >= trace_s;
}

void ReplayClock::Stop() {
  const MutexLock lock(mu_);
  stopped_ = true;
  moved_.NotifyAll();
}

bool ReplayClock::stopped() {
  const MutexLock lock(mu_);
  return stopped_;
}

}  // namespace kvfabric::cli
