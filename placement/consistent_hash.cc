#include "placement/consistent_hash.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "placement/plan_support.h"

namespace kvfabric {
namespace {

struct RingPoint {
  std::uint64_t at = 0;
  MemberIndex member = kNoOwner;

  friend bool operator<(const RingPoint& a, const RingPoint& b) {
    return a.at != b.at ? a.at < b.at : a.member < b.member;
  }
};

class Ring {
 public:
  Ring(const PlanFrame& frame, const ConsistentHash::Options& options);

  // Fills one column of every slot.
  void FillColumn(std::uint32_t column, std::vector<MemberIndex>& table);
  // Sets how many seats each member may take in the columns filled next.
  void BoundLoad(std::uint32_t columns);

 private:
  bool Fits(std::span<const MemberIndex> owners, MemberIndex member, bool spread) const;
  MemberIndex Walk(std::span<const MemberIndex> owners, SlotIndex slot, bool spread) const;

  const PlanFrame& frame_;
  const std::uint32_t load_bound_percent_;
  std::uint64_t total_weight_ = 0;
  std::vector<RingPoint> points_;
  std::vector<std::uint64_t> room_;  // seats a member may still take
};

Ring::Ring(const PlanFrame& frame, const ConsistentHash::Options& options)
    : frame_(frame), load_bound_percent_(options.load_bound_percent) {
  std::uint64_t owning = 0;
  for (const Seating& seating : frame.seating) {
    total_weight_ += seating.weight;
    owning += seating.weight > 0 ? 1 : 0;
  }
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    const std::uint64_t weight = frame.seating[i].weight;
    if (weight == 0) continue;
    const std::uint64_t points = options.points_per_member * owning * weight / total_weight_;
    const Member& member = frame.map.members[i];
    const std::uint64_t identity =
        MixBits(Hash64(AsBytes(member.node_name))) ^ Hash64(AsBytes(member.agent_uid));
    for (std::uint64_t p = 0; p < std::max<std::uint64_t>(1, points); ++p) {
      points_.push_back({MixBits(frame.seed ^ MixBits(identity + p)), static_cast<MemberIndex>(i)});
    }
  }
  std::sort(points_.begin(), points_.end());
}

void Ring::BoundLoad(std::uint32_t columns) {
  room_.assign(frame_.seating.size(), 0);
  const std::uint64_t seats = std::uint64_t{frame_.map.slot_count} * columns;
  for (std::size_t i = 0; i < room_.size() && total_weight_ > 0; ++i) {
    const std::uint64_t share = seats * frame_.seating[i].weight / total_weight_ + 1;
    room_[i] = frame_.seating[i].weight > 0 ? share * load_bound_percent_ / 100 : 0;
  }
}

bool Ring::Fits(std::span<const MemberIndex> owners, MemberIndex member, bool spread) const {
  if (room_[member] == 0) return false;
  return std::none_of(owners.begin(), owners.end(), [&](MemberIndex owner) {
    return owner == member ||
           (spread && frame_.seating[owner].domain == frame_.seating[member].domain);
  });
}

MemberIndex Ring::Walk(std::span<const MemberIndex> owners, SlotIndex slot, bool spread) const {
  const RingPoint start{MixBits(frame_.seed + slot), 0};
  const auto first = std::lower_bound(points_.begin(), points_.end(), start);
  const auto offset = static_cast<std::size_t>(first - points_.begin());
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const MemberIndex member = points_[(offset + i) % points_.size()].member;
    if (Fits(owners, member, spread)) return member;
  }
  return kNoOwner;
}

void Ring::FillColumn(std::uint32_t column, std::vector<MemberIndex>& table) {
  const std::uint32_t columns = frame_.map.owners_per_slot;
  for (SlotIndex slot = 0; slot < frame_.map.slot_count; ++slot) {
    const std::size_t first = std::size_t{slot} * columns;
    const std::span<const MemberIndex> owners(table.data() + first, column);
    if (column > 0 && owners.back() == kNoOwner) continue;  // fewer members than columns
    MemberIndex member = Walk(owners, slot, true);
    if (member == kNoOwner) member = Walk(owners, slot, false);
    table[first + column] = member;
    if (member != kNoOwner) --room_[member];
  }
}

}  // namespace

Result<PlanResult> ConsistentHash::Plan(const PlanInput& input) const {
  if (options_.points_per_member == 0 || options_.load_bound_percent <= 100) {
    return InvalidArgument(
        "consistent hash: plan: needs points per member > 0 and a load bound above 100 percent");
  }
  KVF_ASSIGN_OR_RETURN(const PlanFrame frame, PreparePlan(input));
  PlanResult result;
  result.map = frame.map;
  const std::uint32_t columns = result.map.owners_per_slot;
  result.map.table.assign(std::size_t{result.map.slot_count} * columns, kNoOwner);
  Ring ring(frame, options_);
  ring.BoundLoad(result.map.replicas);
  for (std::uint32_t column = 0; column < columns; ++column) {
    if (column == result.map.replicas) ring.BoundLoad(columns - column);
    ring.FillColumn(column, result.map.table);
  }
  DescribePlan(input, frame, result);
  return result;
}

}  // namespace kvfabric
