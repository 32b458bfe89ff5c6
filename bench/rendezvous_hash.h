#pragma once

// RendezvousHash: highest random weight, the usual answer to "which nodes" without a table: every
// slot goes to the members with the highest hash of (slot, member), in distinct zones where it can.
// Weights are ignored. Only a comparator of the placement suite. Stateless; any thread.

#include "placement/planner.h"

namespace kvfabric {

class RendezvousHash : public Planner {
 public:
  std::string_view name() const override { return "RendezvousHash"; }
  Result<PlanResult> Plan(const PlanInput& input) const override;
};

}  // namespace kvfabric
