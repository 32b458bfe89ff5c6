#include "agent/service/control_fence.h"

#include <utility>

namespace kvfabric {

Status ControlFence::RefuseOld(std::uint64_t term) const {
  return FailedPrecondition("control session: term " + std::to_string(term) +
                            " is over (highest seen " + std::to_string(highest_term_) +
                            "): this operator is no longer the leader");
}

Result<ControlFence::Ticket> ControlFence::Enter(std::uint64_t term, const std::string& operator_id,
                                                 std::function<void(const Status&)> on_superseded) {
  std::function<void(const Status&)> superseded;
  Ticket ticket = 0;
  {
    MutexLock lock(mu_);
    if (term < highest_term_) return RefuseOld(term);
    if (active_ != 0 && term == highest_term_ && operator_id != operator_id_) {
      return AlreadyExists("control session: operator " + operator_id_ + " holds term " +
                           std::to_string(term) + " (refused: " + operator_id + ")");
    }
    if (active_ != 0) superseded = std::move(on_superseded_);
    highest_term_ = term;
    operator_id_ = operator_id;
    on_superseded_ = std::move(on_superseded);
    active_ = ticket = next_++;
  }
  if (superseded) {
    superseded(Aborted("control session: operator " + operator_id + " took over with term " +
                       std::to_string(term)));
  }
  return ticket;
}

Status ControlFence::Check(Ticket ticket, std::uint64_t term) {
  MutexLock lock(mu_);
  if (term < highest_term_) return RefuseOld(term);
  if (ticket != active_) {
    return Aborted("control session: another session took over (operator " + operator_id_ + ")");
  }
  highest_term_ = term;
  return Status::Ok();
}

void ControlFence::Leave(Ticket ticket) {
  MutexLock lock(mu_);
  if (ticket != active_) return;
  active_ = 0;
  on_superseded_ = nullptr;
}

std::uint64_t ControlFence::highest_term() const {
  MutexLock lock(mu_);
  return highest_term_;
}

}  // namespace kvfabric
