#pragma once

// ControlFence: which operator session may give orders. Terms only grow; of the highest term one
// session is active. A second stream of the same operator takes over (its first may be half
// open); another operator of the same term is refused while the first's stream lives.
//
// Terms are compared within one Lease only. An operator of another Lease (its store was lost, or
// it is another cluster's) is refused while a session lives, whatever its term; once none does, it
// starts a sequence of its own. The terms of the last kMaxLeases are kept, so that a deposed
// leader of one of them stays refused when that Lease's operator returns.
//
// Owned by the Control service; any thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class ControlFence {
 public:
  using Ticket = std::uint64_t;
  struct Leadership {
    std::string lease_uid;
    std::uint64_t term = 0;
    std::string operator_id;
  };
  static constexpr std::size_t kMaxLeases = 16;

  // `on_superseded` runs at most once, when another session takes over. FAILED_PRECONDITION: a
  // higher term of its Lease was seen. ALREADY_EXISTS: another operator holds this term, or one of
  // another Lease is connected.
  Result<Ticket> Enter(const Leadership& leadership,
                       std::function<void(const Status&)> on_superseded) EXCLUDES(mu_);
  // Whether a message of this term may be obeyed; a higher term raises the fence.
  Status Check(Ticket ticket, std::uint64_t term) EXCLUDES(mu_);
  void Leave(Ticket ticket) EXCLUDES(mu_);

  // Of the Lease that spoke last.
  std::uint64_t highest_term() const EXCLUDES(mu_);
  // Of this Lease; 0 when it is not known. What a refused hello is answered with.
  std::uint64_t HighestTermOf(const std::string& lease_uid) const EXCLUDES(mu_);

 private:
  struct Sequence {
    std::string lease_uid;
    std::uint64_t highest_term = 0;
  };

  static Status RefuseOld(std::uint64_t term, std::uint64_t highest);
  // Makes `lease_uid` the Lease that spoke last.
  void Follow(const std::string& lease_uid, std::uint64_t term) REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Sequence> sequences_ GUARDED_BY(mu_);  // the Lease that spoke last is at the end
  Ticket next_ GUARDED_BY(mu_) = 1;
  Ticket active_ GUARDED_BY(mu_) = 0;  // 0 = none
  std::string operator_id_ GUARDED_BY(mu_);
  std::function<void(const Status&)> on_superseded_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
