#include "placement/sticky_quota.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "placement/column_matcher.h"
#include "placement/plan_support.h"
#include "placement/primary_balance.h"
#include "placement/quota.h"
#include "placement/rebalance_rules.h"
#include "placement/seat_ledger.h"

namespace kvfabric {
namespace {

// Column limits of one failure domain: as few owners of a slot as its domains allow.
std::uint32_t DomainLimit(std::uint32_t columns, std::uint32_t domains) {
  return domains == 0 ? columns : (columns + domains - 1) / domains;
}

// One plan under way.
class StickyPlan {
 public:
  StickyPlan(const PlanInput& input, const PlanFrame& frame)
      : input_(input),
        frame_(frame),
        budget_(input.balance_slots_max.value_or(MisplacedBudget(input.slot_count))) {}

  PlanResult Run();

 private:
  void Inherit();
  void InheritSlot(SlotIndex slot);
  std::vector<std::uint32_t> HeldIn(std::uint32_t first_column, std::uint32_t end_column) const;
  // Quotas for the columns [first, end), given what members hold in the columns before.
  std::vector<std::uint32_t> Quotas(std::uint32_t first_column, std::uint32_t end_column) const;
  std::uint32_t MatchColumns(std::uint32_t first_column, std::uint32_t end_column);
  void CloseGaps();
  std::size_t member_count() const { return frame_.seating.size(); }

  const PlanInput& input_;
  const PlanFrame& frame_;
  const std::uint32_t budget_;
  SeatTable table_;
};

PlanResult StickyPlan::Run() {
  Inherit();
  PlanResult result;
  result.map = frame_.map;
  const std::uint32_t replicas = frame_.map.replicas;
  result.misplaced_remaining = MatchColumns(0, replicas);
  if (replicas < table_.columns) {
    result.misplaced_remaining += MatchColumns(replicas, table_.columns);
  }
  BalanceFirstOwners(table_, replicas, frame_.seating);
  CloseGaps();
  result.map.table = std::move(table_.owner);
  DescribePlan(input_, frame_, result);
  return result;
}

void StickyPlan::Inherit() {
  table_.slot_count = frame_.map.slot_count;
  table_.columns = frame_.map.owners_per_slot;
  const std::size_t seats = std::size_t{table_.slot_count} * table_.columns;
  table_.owner.assign(seats, kNoOwner);
  table_.state.assign(seats, SeatState::kEmpty);
  table_.kept.assign(table_.slot_count, 0);
  table_.rebalanced.assign(table_.slot_count, 0);
  table_.bereft.assign(table_.slot_count, 0);
  if (input_.previous == nullptr) return;
  for (SlotIndex slot = 0; slot < table_.slot_count; ++slot) InheritSlot(slot);
}

void StickyPlan::InheritSlot(SlotIndex slot) {
  const std::span<const MemberIndex> before = input_.previous->Owners(slot);
  const auto keep = [&](std::uint32_t column, MemberIndex member) {
    table_.owner[table_.Seat(slot, column)] = member;
    table_.state[table_.Seat(slot, column)] = SeatState::kKept;
    ++table_.kept[slot];
  };
  for (std::uint32_t c = 0; c < before.size(); ++c) {
    if (before[c] == kNoOwner) continue;
    const MemberIndex member = frame_.renamed[before[c]];
    if (member == kNoOwner || frame_.seating[member].weight == 0) {
      table_.bereft[slot] = 1;
      continue;
    }
    if (c < table_.columns) {
      keep(c, member);
      continue;
    }
    // Fewer columns than before: a survivor of a dropped column takes a place that fell empty.
    for (std::uint32_t d = 0; d < table_.columns; ++d) {
      if (table_.owner[table_.Seat(slot, d)] != kNoOwner) continue;
      keep(d, member);
      break;
    }
  }
}

std::vector<std::uint32_t> StickyPlan::HeldIn(std::uint32_t first_column,
                                              std::uint32_t end_column) const {
  std::vector<std::uint32_t> held(member_count(), 0);
  for (std::size_t seat = 0; seat < table_.owner.size(); ++seat) {
    const std::uint32_t column = table_.ColumnOfSeat(seat);
    const MemberIndex owner = table_.owner[seat];
    if (owner != kNoOwner && column >= first_column && column < end_column) ++held[owner];
  }
  return held;
}

std::vector<std::uint32_t> StickyPlan::Quotas(std::uint32_t first_column,
                                              std::uint32_t end_column) const {
  const std::uint32_t slots = table_.slot_count;
  const std::vector<std::uint32_t> taken = HeldIn(0, first_column);
  const std::vector<std::uint32_t> held = HeldIn(first_column, end_column);
  std::uint32_t domains = 0;
  for (const Seating& seating : frame_.seating) domains = std::max(domains, seating.domain + 1);
  std::vector<std::uint32_t> domain_caps(domains,
                                         slots * DomainLimit(end_column, frame_.domain_count));
  std::vector<MemberClaim> claims(member_count());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Seating& seating = frame_.seating[i];
    claims[i].domain = seating.domain;
    claims[i].claim.weight = seating.weight;
    claims[i].claim.holds = held[i];
    claims[i].claim.cap = seating.held ? held[i] : slots - taken[i];
    domain_caps[seating.domain] -= std::min(domain_caps[seating.domain], taken[i]);
  }
  return ShareSeatsByDomain(claims, domain_caps, slots * (end_column - first_column));
}

// Returns how many seats are left for the next plan.
std::uint32_t StickyPlan::MatchColumns(std::uint32_t first_column, std::uint32_t end_column) {
  const std::vector<std::uint32_t> quotas = Quotas(first_column, end_column);
  ColumnMatcher matcher(table_, {.first_column = first_column,
                                 .end_column = end_column,
                                 .domain_limit = DomainLimit(end_column, frame_.domain_count),
                                 .seating = frame_.seating,
                                 .quotas = quotas,
                                 .slot_bytes = input_.slot_bytes,
                                 .seed = frame_.seed});
  matcher.FillEmptySeats();
  const std::uint32_t separated = matcher.SeparateDomains(budget_);
  matcher.MoveToQuota(budget_ - std::min(budget_, separated));
  return matcher.RemainingSeats();
}

// With fewer members than columns the empty columns are the last ones.
void StickyPlan::CloseGaps() {
  for (SlotIndex slot = 0; slot < table_.slot_count; ++slot) {
    const auto first = table_.owner.begin() + static_cast<std::ptrdiff_t>(table_.Seat(slot, 0));
    std::stable_partition(first, first + table_.columns,
                          [](MemberIndex owner) { return owner != kNoOwner; });
  }
}

}  // namespace

Result<PlanResult> StickyQuota::Plan(const PlanInput& input) const {
  KVF_ASSIGN_OR_RETURN(const PlanFrame frame, PreparePlan(input));
  return StickyPlan(input, frame).Run();
}

}  // namespace kvfabric
