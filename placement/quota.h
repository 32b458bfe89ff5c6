#pragma once

// Quotas: how many seats (table entries) each member should have.
//
// Water-filling in integers: seats go to failure domains and then to members in proportion to
// weight, none above its cap; what a capped one cannot take is shared among the others. Rounding
// is by largest remainder, but whoever already holds the higher number keeps it, so that equal
// input after a small change moves nothing needlessly. Every quota is the floor or the ceiling of
// its exact share within its domain. Pure; any thread.

#include <cstdint>
#include <span>
#include <vector>

namespace kvfabric {

struct QuotaClaim {
  std::uint64_t weight = 0;  // all weights together < 2^40
  std::uint32_t cap = 0;
  std::uint32_t holds = 0;
};

// One level. At most the sum of the caps is handed out; the result is as long as `claims`.
// `seats` <= 2^20. A weight of 0 gets nothing.
std::vector<std::uint32_t> ShareSeats(std::span<const QuotaClaim> claims, std::uint32_t seats);

struct MemberClaim {
  QuotaClaim claim;
  std::uint32_t domain = 0;  // < the number of domain caps
};

// Two levels: domains (capped by `domain_caps` and by what their members can take), then members.
std::vector<std::uint32_t> ShareSeatsByDomain(std::span<const MemberClaim> claims,
                                              std::span<const std::uint32_t> domain_caps,
                                              std::uint32_t seats);

}  // namespace kvfabric
