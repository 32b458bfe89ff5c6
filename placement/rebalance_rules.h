#pragma once

// When a member counts as lost, how fast a new one is loaded, and how much may move at once: pure
// functions of times that the caller measured. Nothing here reads a clock. Any thread.

#include <chrono>
#include <cstdint>

#include "placement/shard_map.h"

namespace kvfabric {

struct LossRules {
  // No heartbeat for this long = Suspect: reads go elsewhere, nothing moves.
  std::chrono::milliseconds suspect_after{3'000};
  // No heartbeat for this long = Lost: slots are re-assigned (nodeLossGracePeriod).
  std::chrono::milliseconds grace{300'000};
};

struct MemberObservation {
  MemberState state = MemberState::kActive;
  bool heard = true;  // in this leadership; else last_heartbeat_age is that of the leadership
  std::chrono::milliseconds last_heartbeat_age{0};
  std::chrono::milliseconds leadership_age{0};  // since this operator became leader
  bool node_gone = false;                       // its Node object no longer exists
  bool joined = true;                           // its join ramp has ended
};

// The state a member has next. Silence counts only from the start of this leadership, and nobody
// becomes Suspect or Lost before one full grace of it: a new leader has heard from nobody yet. Nor
// does anybody come back before it was heard. A member heard again is Active, or Joining if it had
// not joined in full or lost its slots. Draining ends only as Lost; Joining ends by
// JoinSharePermille(), Recovering by the agent's own report.
MemberState NextMemberState(const MemberObservation& seen, const LossRules& rules);

struct JoinRules {
  std::chrono::milliseconds warmup{60'000};  // joinWarmup: from nothing to a full share
  std::uint32_t ramp_percent = 10;           // joinRampPercent: one step, 1..100
};

// Share of its quota a joining member may have after `elapsed`: 10 %, 20 %, ... in equal steps of
// time, 1000 from `warmup` on, when it is Active.
std::uint32_t JoinSharePermille(std::chrono::milliseconds elapsed, const JoinRules& rules);

// Slots that may move for balance now: 5 % of all, less those still on their way.
std::uint32_t MisplacedBudget(std::uint32_t slot_count, std::uint32_t misplaced_now = 0);

}  // namespace kvfabric
