#pragma once

// StickyQuota: the default planner. Every member owns its exact share (weight, capped by failure
// domain), and a plan changes the last map as little as that allows.
//
// Order of work: (1) owners that still may own keep their column; (2) quotas by water-filling;
// (3) empty seats are filled, a surviving directory owner moving up to the byte column where its
// quota allows; (4) owners of a slot that share a domain are separated; (5) members above quota
// give their lightest slots to members below; (6) the directory columns likewise; (7) first places
// among byte owners are shared out. Steps 4 and 5 stay within the balance limit, step 3 does not.
//
// Stateless; any thread. Time and memory are linear in slots x owners: at 65,536 slots x 1,000
// members ~10 ms for a join or leave and ~25 ms from nothing.

#include "placement/planner.h"

namespace kvfabric {

class StickyQuota : public Planner {
 public:
  std::string_view name() const override { return "StickyQuota"; }
  Result<PlanResult> Plan(const PlanInput& input) const override;
};

}  // namespace kvfabric
