#pragma once

// Clock: time as a parameter, so that tests own it (tests/fakes/fake_clock.h). Any thread.

#include <chrono>
#include <cstdint>

namespace kvfabric {

class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // Unix time; only for boot epochs and what people read. Never for time-outs.
  virtual std::int64_t UnixMicros() const = 0;

  // The machine's clock; lives for ever.
  static const Clock& System();
};

// A point on the steady clock by which a call returns what it has.
class Deadline {
 public:
  Deadline() = default;  // already passed
  static Deadline After(const Clock& clock, std::chrono::milliseconds budget) {
    return Deadline(clock.Now() + budget);
  }
  static Deadline At(Clock::TimePoint at) { return Deadline(at); }

  Clock::TimePoint at() const { return at_; }
  bool Passed(const Clock& clock) const { return clock.Now() >= at_; }
  // Whole milliseconds left, at least 0: what goes on the wire.
  std::chrono::milliseconds Remaining(const Clock& clock) const {
    const auto left = at_ - clock.Now();
    return left <= Clock::Duration::zero()
               ? std::chrono::milliseconds(0)
               : std::chrono::duration_cast<std::chrono::milliseconds>(left);
  }

 private:
  explicit Deadline(Clock::TimePoint at) : at_(at) {}
  Clock::TimePoint at_{};
};

}  // namespace kvfabric
