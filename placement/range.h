#pragma once

// Range: each member owns one contiguous range of slots, as long as its weight says, for those who
// want to see at a glance who owns what.
//
// The copies of all slots are laid end to end, once round the slots for each copy, and cut among
// the members, failure domain by failure domain. A domain's stretch is at most one round long where
// the domains allow it, so the owners of a slot are in different ones, and every member has exactly
// its quota. The first place among a slot's owners passes from one to the next, slot by slot. The
// directory column of a pool without copies is the same ranges half a round on.
//
// The last map is used only to describe moves: neither the balance limit nor slot bytes have any
// effect, a Suspect member counts as Active, and a slot may change all of its owners at once. A
// member that comes or goes shifts every border behind it: about half of what the pool holds then
// belongs elsewhere, where StickyQuota moves one member's share. Stateless; any thread.

#include "placement/planner.h"

namespace kvfabric {

class Range : public Planner {
 public:
  std::string_view name() const override { return "Range"; }
  Result<PlanResult> Plan(const PlanInput& input) const override;
};

}  // namespace kvfabric
