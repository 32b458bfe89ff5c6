#pragma once

// ByteBudget: bytes under way against a limit. Any thread; a Hold gives its bytes back when it
// goes. The budget is shared with its holds, so that a hold may outlive the budget's owner.

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace kvfabric {

class ByteBudget : public std::enable_shared_from_this<ByteBudget> {
 public:
  class Hold {
   public:
    Hold() = default;
    Hold(std::shared_ptr<ByteBudget> budget, std::size_t bytes)
        : budget_(std::move(budget)), bytes_(bytes) {}
    Hold(Hold&& other) noexcept
        : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&&) = delete;  // a hold stays where it was made
    ~Hold() {
      // Relaxed: the count orders nothing but itself.
      if (budget_ != nullptr) budget_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    std::shared_ptr<ByteBudget> budget_;
    std::size_t bytes_ = 0;
  };

  explicit ByteBudget(std::size_t limit) : limit_(limit) {}

  // Empty when it does not fit.
  Hold Take(std::size_t bytes) {
    std::size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ || used > limit_ - bytes) return Hold();
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return Hold(shared_from_this(), bytes);
  }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> used_ = 0;
};

}  // namespace kvfabric
