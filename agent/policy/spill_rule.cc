#include "agent/policy/spill_rule.h"

#include <algorithm>

namespace kvfabric {

IdleTime SpillMargin(IdleTime own_coldest) { return std::max(own_coldest, IdleTime{0}) / 10; }

std::optional<std::size_t> ChooseSpillPeer(IdleTime victim, IdleTime own_coldest,
                                           std::span<const std::optional<IdleTime>> peers_coldest) {
  const IdleTime colder_than = victim + SpillMargin(own_coldest);
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < peers_coldest.size(); ++i) {
    const std::optional<IdleTime>& coldest = peers_coldest[i];
    if (!coldest.has_value() || *coldest <= colder_than) continue;
    if (!chosen.has_value() || *coldest > *peers_coldest[*chosen]) chosen = i;
  }
  return chosen;
}

}  // namespace kvfabric
