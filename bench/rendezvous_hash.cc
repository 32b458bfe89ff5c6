#include "bench/rendezvous_hash.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "placement/plan_support.h"

namespace kvfabric {
namespace {

using Score = std::pair<std::uint64_t, MemberIndex>;

// The highest scores first; a member whose domain the slot has already only if nothing else is
// left.
void ChooseOwners(const PlanFrame& frame, const std::vector<Score>& by_score,
                  std::span<MemberIndex> owners) {
  std::size_t column = 0;
  for (const bool spread : {true, false}) {
    for (const Score& candidate : by_score) {
      if (column == owners.size()) return;
      const MemberIndex member = candidate.second;
      const auto chosen = owners.first(column);
      const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](MemberIndex owner) {
        return owner == member ||
               (spread && frame.seating[owner].domain == frame.seating[member].domain);
      });
      if (!taken) owners[column++] = member;
    }
  }
}

}  // namespace

Result<PlanResult> RendezvousHash::Plan(const PlanInput& input) const {
  KVF_ASSIGN_OR_RETURN(const PlanFrame frame, PreparePlan(input));
  PlanResult result;
  result.map = frame.map;
  const std::size_t columns = result.map.owners_per_slot;
  result.map.table.assign(result.map.slot_count * columns, kNoOwner);
  std::vector<std::pair<std::uint64_t, MemberIndex>> members;
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    if (frame.seating[i].weight == 0) continue;
    members.emplace_back(Hash64(AsBytes(frame.map.members[i].node_name)),
                         static_cast<MemberIndex>(i));
  }
  // Few candidates hold enough domains nearly always; sorting all of 1,000 for each slot would make
  // the comparison of times unfair.
  const std::size_t candidates = std::min<std::size_t>(members.size(), columns * 8);
  std::vector<Score> scores(members.size());
  for (SlotIndex slot = 0; slot < result.map.slot_count; ++slot) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      scores[i] = {MixBits(members[i].first ^ MixBits(frame.seed + slot)), members[i].second};
    }
    std::partial_sort(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(candidates),
                      scores.end(), std::greater<>());
    ChooseOwners(frame,
                 std::vector<Score>(scores.begin(),
                                    scores.begin() + static_cast<std::ptrdiff_t>(candidates)),
                 {result.map.table.data() + slot * columns, columns});
  }
  DescribePlan(input, frame, result);
  return result;
}

}  // namespace kvfabric
