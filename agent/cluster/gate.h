#pragma once

// Gate counts what is under way, so that an owner can refuse new work and wait for the rest before
// it goes away. Any thread; CloseAndWait once, by the owner, not from inside.

#include <cstddef>
#include <memory>
#include <utility>

#include "common/mutex.h"

namespace kvfabric {

class Gate {
 public:
  // Held by work under way. Move only; gives its place back when destroyed.
  class Pass {
   public:
    Pass() = default;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      if (this != &other) {
        Leave();
        gate_ = std::exchange(other.gate_, nullptr);
      }
      return *this;
    }
    ~Pass() { Leave(); }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    void Leave() {
      if (gate_ != nullptr) std::exchange(gate_, nullptr)->Leave();
    }
    Gate* gate_ = nullptr;
  };

  Gate() = default;
  Gate(const Gate&) = delete;  // passes point to it
  Gate& operator=(const Gate&) = delete;

  // Empty once the gate is closed.
  Pass Enter() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (closed_) return Pass();
    ++inside_;
    return Pass(this);
  }
  // The same, for std::function, which copies its captures.
  std::shared_ptr<Pass> EnterShared() {
    Pass pass = Enter();
    return pass ? std::make_shared<Pass>(std::move(pass)) : nullptr;
  }
  // Closes if nothing is under way.
  bool TryClose() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = closed_ || inside_ == 0;
    return closed_ && inside_ == 0;
  }
  void CloseAndWait() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = true;
    while (inside_ > 0) empty_.Wait(mu_);
  }

 private:
  void Leave() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (--inside_ == 0) empty_.NotifyAll();
  }

  Mutex mu_;
  CondVar empty_;
  std::size_t inside_ GUARDED_BY(mu_) = 0;
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
