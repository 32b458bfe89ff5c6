#pragma once

// ConsistentHash: a ring with bounded loads (Mirrokni et al., arXiv 1608.01350), for comparison
// with StickyQuota and for those who want a plan that does not depend on the last one.
//
// Each member has points on a ring in proportion to its weight; a slot walks from its own point to
// the first members that are below `load_bound_percent` of their share and in a failure domain the
// slot does not have yet; a second walk drops the domain rule. The last map is used only to
// describe moves, so neither the balance limit nor slot bytes have any effect. A Suspect member
// counts as Active. Stateless; any thread.

#include "placement/planner.h"

namespace kvfabric {

class ConsistentHash : public Planner {
 public:
  struct Options {
    std::uint32_t points_per_member = 100;   // of a member of mean weight
    std::uint32_t load_bound_percent = 125;  // of a member's share; more than 100
  };

  ConsistentHash() = default;
  explicit ConsistentHash(Options options) : options_(options) {}

  std::string_view name() const override { return "ConsistentHash"; }
  Result<PlanResult> Plan(const PlanInput& input) const override;

 private:
  Options options_;
};

}  // namespace kvfabric
