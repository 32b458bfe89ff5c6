#pragma once

// Tally: a count that threads add to and tests wait for. Any thread.

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/fakes/test_seed.h"

namespace kvfabric {

class Tally {
 public:
  void Add(int by = 1) {
    const std::lock_guard<std::mutex> lock(mu_);
    value_ += by;
    changed_.notify_all();
  }
  int value() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return value_;
  }
  // False when `value` was not reached in time.
  bool WaitFor(int value, std::chrono::milliseconds within = std::chrono::milliseconds(5000)) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, within * TimeScale(), [&] { return value_ >= value; });
  }

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  int value_ = 0;
};

}  // namespace kvfabric
