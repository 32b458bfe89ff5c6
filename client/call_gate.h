#pragma once

// CallGate counts the calls under way in a client, so that its destructor can wait for them.
// Any thread.

#include <cstddef>

#include "common/mutex.h"

namespace kvfabric {

class CallGate {
 public:
  // One call; counted while it lives.
  class Pass {
   public:
    explicit Pass(CallGate& gate) : gate_(gate) {
      MutexLock lock(gate_.mu_);
      ++gate_.inside_;
    }
    ~Pass() {
      MutexLock lock(gate_.mu_);
      if (--gate_.inside_ == 0) gate_.empty_.NotifyAll();
    }
    Pass(const Pass&) = delete;  // would be counted once and left twice
    Pass& operator=(const Pass&) = delete;

   private:
    CallGate& gate_;
  };

  void WaitUntilEmpty() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (inside_ > 0) empty_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar empty_;
  std::size_t inside_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
