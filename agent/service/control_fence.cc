#include "agent/service/control_fence.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

Status ControlFence::RefuseOld(std::uint64_t term, std::uint64_t highest) {
  return FailedPrecondition("control session: term " + std::to_string(term) +
                            " is over (highest seen " + std::to_string(highest) +
                            "): this operator is no longer the leader");
}

void ControlFence::Follow(const std::string& lease_uid, std::uint64_t term) {
  std::erase_if(sequences_, [&](const Sequence& known) { return known.lease_uid == lease_uid; });
  if (sequences_.size() == kMaxLeases) sequences_.erase(sequences_.begin());
  sequences_.push_back({lease_uid, term});
}

Result<ControlFence::Ticket> ControlFence::Enter(const Leadership& leadership,
                                                 std::function<void(const Status&)> on_superseded) {
  const std::uint64_t term = leadership.term;
  const std::string& operator_id = leadership.operator_id;
  std::function<void(const Status&)> superseded;
  Ticket ticket = 0;
  {
    MutexLock lock(mu_);
    const auto known = std::find_if(
        sequences_.begin(), sequences_.end(),
        [&](const Sequence& sequence) { return sequence.lease_uid == leadership.lease_uid; });
    const std::uint64_t highest = known == sequences_.end() ? 0 : known->highest_term;
    if (term < highest) return RefuseOld(term, highest);
    if (active_ != 0 && sequences_.back().lease_uid != leadership.lease_uid) {
      return AlreadyExists("control session: operator " + operator_id_ + " of another Lease (" +
                           sequences_.back().lease_uid + ") is connected (refused: " + operator_id +
                           " of Lease " + leadership.lease_uid +
                           "): an agent obeys one operator; stop that one to hand the agent over");
    }
    if (active_ != 0 && term == highest && operator_id != operator_id_) {
      return AlreadyExists("control session: operator " + operator_id_ + " holds term " +
                           std::to_string(term) + " (refused: " + operator_id + ")");
    }
    if (active_ != 0) superseded = std::move(on_superseded_);
    Follow(leadership.lease_uid, term);
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
  if (ticket != active_) {
    return Aborted("control session: another session took over (operator " + operator_id_ + ")");
  }
  std::uint64_t& highest = sequences_.back().highest_term;
  if (term < highest) return RefuseOld(term, highest);
  highest = term;
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
  return sequences_.empty() ? 0 : sequences_.back().highest_term;
}

std::uint64_t ControlFence::HighestTermOf(const std::string& lease_uid) const {
  MutexLock lock(mu_);
  for (const Sequence& sequence : sequences_) {
    if (sequence.lease_uid == lease_uid) return sequence.highest_term;
  }
  return 0;
}

}  // namespace kvfabric
