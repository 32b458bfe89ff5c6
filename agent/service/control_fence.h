#pragma once

// ControlFence: which operator session may give orders. Terms only grow; of the highest term one
// session is active. A second stream of the same operator takes over (its first may be half
// open); another operator of the same term is refused while the first's stream lives.
//
// Owned by the Control service; any thread.

#include <cstdint>
#include <functional>
#include <string>

#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class ControlFence {
 public:
  using Ticket = std::uint64_t;

  // `on_superseded` runs at most once, when another session takes over. FAILED_PRECONDITION: a
  // higher term was seen. ALREADY_EXISTS: another operator holds this term.
  Result<Ticket> Enter(std::uint64_t term, const std::string& operator_id,
                       std::function<void(const Status&)> on_superseded) EXCLUDES(mu_);
  // Whether a message of this term may be obeyed; a higher term raises the fence.
  Status Check(Ticket ticket, std::uint64_t term) EXCLUDES(mu_);
  void Leave(Ticket ticket) EXCLUDES(mu_);

  std::uint64_t highest_term() const EXCLUDES(mu_);

 private:
  Status RefuseOld(std::uint64_t term) const REQUIRES(mu_);

  mutable Mutex mu_;
  std::uint64_t highest_term_ GUARDED_BY(mu_) = 0;
  Ticket next_ GUARDED_BY(mu_) = 1;
  Ticket active_ GUARDED_BY(mu_) = 0;  // 0 = none
  std::string operator_id_ GUARDED_BY(mu_);
  std::function<void(const Status&)> on_superseded_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
