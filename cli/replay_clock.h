#pragma once

// ReplayClock: trace time of a replay, and waiting for points of it. With a speed, trace time is
// wall time times the speed; without (closed loop) it is the timestamp of the request last begun.
// Any thread. Waits end early when the replay is stopped.

#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric::cli {

class ReplayClock {
 public:
  // `speed` 0 = closed loop. Starts now.
  ReplayClock(const Clock& clock, double speed)
      : clock_(clock), speed_(speed), start_(clock.Now()) {}

  // Seconds of wall time since the start.
  double WallSeconds() const {
    return std::chrono::duration<double>(clock_.Now() - start_).count();
  }
  double TraceSeconds() EXCLUDES(mu_);
  // Before a request is begun: waits until it is due, or tells the time in a closed loop. Answers
  // by how many seconds of wall time it is late. False in `go`: stopped.
  double Begin(double trace_s, bool* go) EXCLUDES(mu_);
  // Waits until trace time reaches `trace_s`; false when stopped before that.
  bool WaitFor(double trace_s) EXCLUDES(mu_);
  // Ends all waits, now and later.
  void Stop() EXCLUDES(mu_);
  bool stopped() EXCLUDES(mu_);

 private:
  Clock::TimePoint DueAt(double trace_s) const;

  const Clock& clock_;  // borrowed; outlives this
  const double speed_;
  const Clock::TimePoint start_;
  Mutex mu_;
  CondVar moved_;
  double begun_s_ GUARDED_BY(mu_) = 0;
  bool stopped_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric::cli
