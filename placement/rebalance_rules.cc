#include "placement/rebalance_rules.h"

#include <algorithm>

namespace kvfabric {
namespace {

constexpr std::uint32_t kMisplacedPercent = 5;
constexpr std::uint32_t kFullShare = 1000;

MemberState StateWhenHeard(const MemberObservation& seen) {
  switch (seen.state) {
    case MemberState::kSuspect:
      return seen.joined ? MemberState::kActive : MemberState::kJoining;
    case MemberState::kLost:
      return MemberState::kJoining;
    default:
      return seen.state;
  }
}

}  // namespace

MemberState NextMemberState(const MemberObservation& seen, const LossRules& rules) {
  const bool may_judge = seen.leadership_age >= rules.grace;
  if (seen.node_gone && may_judge) return MemberState::kLost;
  const std::chrono::milliseconds silence = std::min(seen.last_heartbeat_age, seen.leadership_age);
  if (silence < rules.suspect_after) return seen.heard ? StateWhenHeard(seen) : seen.state;
  if (!may_judge || seen.state == MemberState::kLost) return seen.state;
  if (silence >= rules.grace) return MemberState::kLost;
  return seen.state == MemberState::kDraining ? seen.state : MemberState::kSuspect;
}

std::uint32_t JoinSharePermille(std::chrono::milliseconds elapsed, const JoinRules& rules) {
  const std::uint32_t step = std::clamp<std::uint32_t>(rules.ramp_percent, 1, 100);
  const std::int64_t steps = (100 + step - 1) / step;
  if (rules.warmup.count() <= 0 || elapsed >= rules.warmup) return kFullShare;
  const std::int64_t done =
      std::max<std::int64_t>(elapsed.count(), 0) * steps / rules.warmup.count();
  return std::min(kFullShare, static_cast<std::uint32_t>(done + 1) * step * 10);
}

std::uint32_t MisplacedBudget(std::uint32_t slot_count, std::uint32_t misplaced_now) {
  const std::uint32_t allowed =
      slot_count / 100 * kMisplacedPercent + slot_count % 100 * kMisplacedPercent / 100;
  return allowed - std::min(allowed, misplaced_now);
}

}  // namespace kvfabric
