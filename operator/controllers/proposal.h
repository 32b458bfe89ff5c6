#pragma once

// Proposer: rebalance.mode Propose. Says in the pool's status which moves it would make for balance
// and for nodes that join, and lets them be made once the pool carries the annotation
// kvfabric.io/approve=<id>. Slots of nodes that are lost, drain or leave do not wait for it.
//
// An id stands for its moves: the same plan has the same id under any leader, another plan has
// another one, and an approval for what no longer is the plan is void. What was approved goes on in
// steps (each within the 5 % limit) while the members it was made for are the same; a change among
// them ends it, and the next proposal needs its own approval. The status carries all of it: an
// approval is written there before the first move, so a new leader goes on where the last one was.
//
// One per pool, on the control loop's thread. Remembers only the last plan, not to make it anew at
// each look.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operator/controllers/member_tracker.h"
#include "operator/specs/pool_spec.h"
#include "placement/planner.h"

namespace kvfabric {

class Proposer {
 public:
  struct Input {
    const Pool* pool = nullptr;  // with the status as stored: what earlier looks found
    const ShardMap* stored = nullptr;
    const std::vector<TrackedMember>* members = nullptr;
    std::uint64_t bytes_per_slot = 0;
    std::int64_t now_unix_us = 0;
  };
  struct Verdict {
    ProposalStatus proposal;    // id "" = nothing to move
    std::string last_approved;  // for the status
    bool may_move = false;      // approved, and the status says so
  };
  Result<Verdict> Look(const Input& input);

 private:
  // What a plan is for and what is in it.
  struct Plan {
    std::string inputs;  // it was made of
    std::string goal;    // hash of the members it is for
    std::string moves;   // hash of what changes hands; "" = nothing does
    std::string reason;
    std::uint64_t slots = 0;
    std::uint64_t bytes = 0;
    std::uint64_t eta_seconds = 0;
  };
  static Result<Plan> Make(const Input& input);

  std::optional<Plan> plan_;
};

}  // namespace kvfabric
