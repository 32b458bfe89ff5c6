#include "placement/column_matcher.h"

#include <algorithm>
#include <queue>
#include <span>
#include <utility>

namespace kvfabric {
namespace {

using Fit = SeatLedger::Fit;

constexpr std::uint32_t kMaxFailedSearches = 64;
// Longest chain worth walking to fill a seat that lost its owner.
constexpr std::uint32_t kFillMovesMax = 8;
// How many slots may be filled before the tight domains are looked at again.
constexpr std::uint32_t kTightRefreshSlots = 64;

}  // namespace

ColumnMatcher::ColumnMatcher(SeatTable& table, const SeatLedger::Options& options)
    : ledger_(table, options),
      good_search_(ledger_, Fit::kGood, options.domain_limit),
      search_(ledger_, Fit::kTolerable, options.domain_limit),
      relaxed_search_(ledger_, Fit::kTolerable, table.columns) {}

std::uint32_t ColumnMatcher::RemainingSeats() const {
  std::uint32_t remaining = deferred_separations_;
  for (std::size_t i = 0; i < ledger_.options().seating.size(); ++i) {
    remaining += ledger_.Excess(static_cast<MemberIndex>(i));
  }
  return remaining;
}

// A slot whose byte owner is gone goes to its surviving directory owner, as far as quotas allow:
// it knows the slot already.
void ColumnMatcher::PromoteFollowers() {
  const SeatTable& table = ledger_.table();
  const std::uint32_t last = ledger_.options().end_column - 1;
  for (SlotIndex slot = 0; slot < table.slot_count; ++slot) {
    const std::size_t seat = table.Seat(slot, last);
    const MemberIndex follower = table.owner[table.Seat(slot, last + 1)];
    if (table.owner[seat] != kNoOwner || follower == kNoOwner) continue;
    if (ledger_.IsOpen(follower)) ledger_.Place(seat, follower);
  }
}

std::vector<SlotIndex> ColumnMatcher::SlotsWithEmptySeats() {
  const SeatTable& table = ledger_.table();
  const SeatLedger::Options& options = ledger_.options();
  blocked_slots_.assign(ledger_.domain_count(), 0);
  std::vector<SlotIndex> slots;
  for (SlotIndex slot = 0; slot < table.slot_count; ++slot) {
    bool empty = false;
    for (std::uint32_t c = options.first_column; c < options.end_column; ++c) {
      empty = empty || table.owner[table.Seat(slot, c)] == kNoOwner;
    }
    if (!empty) continue;
    slots.push_back(slot);
    for (std::uint32_t c = 0; c < options.end_column; ++c) {
      const MemberIndex owner = table.owner[table.Seat(slot, c)];
      if (owner != kNoOwner) ++blocked_slots_[options.seating[owner].domain];
    }
  }
  return slots;
}

// The domains that may become tight before the next look.
void ColumnMatcher::FindTightDomains(std::uint32_t slots_left) {
  const std::uint32_t limit = ledger_.options().domain_limit;
  tight_domains_.clear();
  for (std::uint32_t d = 0; d < ledger_.domain_count(); ++d) {
    const std::uint32_t takers = slots_left - std::min(slots_left, blocked_slots_[d]);
    if (ledger_.OpenInDomain(d) + kTightRefreshSlots * limit > takers * limit) {
      tight_domains_.push_back(d);
    }
  }
}

void ColumnMatcher::FillEmptySeats() {
  if (ledger_.HasFollower()) PromoteFollowers();
  const std::vector<SlotIndex> slots = SlotsWithEmptySeats();
  std::vector<std::size_t> unfilled;
  for (std::size_t i = 0; i < slots.size() && ledger_.open_seats() > 0; ++i) {
    const auto slots_left = static_cast<std::uint32_t>(slots.size() - i);
    if (i % kTightRefreshSlots == 0) FindTightDomains(slots_left);
    FillSlot(slots[i], slots_left, unfilled);
  }
  for (const std::size_t seat : unfilled) {
    if (ledger_.open_seats() == 0) break;
    FillStubborn(seat);
  }
}

void ColumnMatcher::FillSlot(SlotIndex slot, std::uint32_t slots_left,
                             std::vector<std::size_t>& unfilled) {
  const SeatTable& table = ledger_.table();
  const SeatLedger::Options& options = ledger_.options();
  for (std::uint32_t c = 0; c < options.end_column; ++c) {
    const MemberIndex owner = table.owner[table.Seat(slot, c)];
    if (owner != kNoOwner) --blocked_slots_[options.seating[owner].domain];
  }
  for (std::uint32_t c = options.first_column; c < options.end_column; ++c) {
    const std::size_t seat = table.Seat(slot, c);
    if (table.owner[seat] != kNoOwner) continue;
    MemberIndex member = DrawTight(seat, slots_left);
    if (member == kNoOwner) member = ledger_.DrawOpen(seat, Fit::kGood, options.domain_limit);
    if (member != kNoOwner) {
      ledger_.Place(seat, member);
    } else {
      unfilled.push_back(seat);
    }
  }
}

// A domain with as many open seats as slots left that can take it must be taken by each of them.
MemberIndex ColumnMatcher::DrawTight(std::size_t seat, std::uint32_t slots_left) {
  for (const std::uint32_t domain : tight_domains_) {
    if (ledger_.OwnersInDomain(seat, domain) >= ledger_.options().domain_limit) continue;
    const std::uint32_t later = slots_left - 1 - std::min(slots_left - 1, blocked_slots_[domain]);
    if (ledger_.OpenInDomain(domain) <= later * ledger_.options().domain_limit) continue;
    const MemberIndex member = ledger_.DrawOpenInDomain(seat, domain);
    if (member != kNoOwner) return member;
  }
  return kNoOwner;
}

// A seat that no open member fits well: by a chain of moves, else as well as can be, at last
// against the domain rule.
void ColumnMatcher::FillStubborn(std::size_t seat) {
  // Seats filled a moment ago may still be exchanged for a better fit at no cost.
  if (ledger_.HasFollower() && TryFill(good_search_, seat, 0)) return;
  if (PlaceOpen(seat, ledger_.options().domain_limit)) return;
  if (TryFill(search_, seat, kFillMovesMax)) return;
  if (PlaceOpen(seat, ledger_.table().columns)) return;
  TryFill(relaxed_search_, seat, kFillMovesMax);
}

bool ColumnMatcher::PlaceOpen(std::size_t seat, std::uint32_t domain_limit) {
  const MemberIndex member = ledger_.DrawOpen(seat, Fit::kTolerable, domain_limit);
  if (member == kNoOwner) return false;
  ledger_.Place(seat, member);
  return true;
}

bool ColumnMatcher::TryFill(SeatSearch& search, std::size_t seat, std::uint32_t kept_moves_max) {
  if (failed_searches_ >= kMaxFailedSearches) return false;
  if (search.Fill(seat, kept_moves_max)) return true;
  ++failed_searches_;
  return false;
}

std::uint32_t ColumnMatcher::SeparateDomains(std::uint32_t budget) {
  const SeatTable& table = ledger_.table();
  const SeatLedger::Options& options = ledger_.options();
  const std::uint32_t before = ledger_.kept_moves();
  std::uint32_t used = 0;
  for (SlotIndex slot = 0; slot < table.slot_count; ++slot) {
    // From the last column: the first owner is the one to leave in place.
    for (std::uint32_t c = options.end_column; c > options.first_column; --c) {
      const std::size_t seat = table.Seat(slot, c - 1);
      if (!SharesDomain(seat) || options.seating[table.owner[seat]].held) continue;
      if (used >= budget || !ledger_.Movable(seat)) {
        ++deferred_separations_;
        break;  // one move would do for the slot
      }
      SeparateSeat(seat, budget - used - 1);
      used = ledger_.kept_moves() - before;
    }
  }
  return used;
}

bool ColumnMatcher::SharesDomain(std::size_t seat) const {
  const MemberIndex owner = ledger_.table().owner[seat];
  if (owner == kNoOwner) return false;
  const std::uint32_t domain = ledger_.options().seating[owner].domain;
  return ledger_.OwnersInDomain(seat, domain) >= ledger_.options().domain_limit;
}

bool ColumnMatcher::SeparateSeat(std::size_t seat, std::uint32_t kept_moves_max) {
  const MemberIndex owner = ledger_.table().owner[seat];
  ledger_.Vacate(seat);
  if (PlaceOpen(seat, ledger_.options().domain_limit)) return true;
  if (TryFill(search_, seat, std::min(kept_moves_max, kFillMovesMax))) return true;
  ledger_.Reinstate(seat, owner);
  return false;
}

std::uint32_t ColumnMatcher::MoveToQuota(std::uint32_t budget) {
  const std::uint32_t before = ledger_.kept_moves();
  const std::size_t members = ledger_.options().seating.size();
  // The member furthest above quota first; of equals the one listed first.
  std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> above;
  const auto order = [](std::size_t i) { return ~static_cast<std::uint32_t>(i); };
  for (std::size_t i = 0; i < members; ++i) {
    const std::uint32_t excess = ledger_.Excess(static_cast<MemberIndex>(i));
    if (excess > 0) above.emplace(excess, order(i));
  }
  std::uint32_t used = 0;
  while (!above.empty() && used < budget && ledger_.open_seats() > 0) {
    const auto member = static_cast<MemberIndex>(~above.top().second);
    above.pop();
    if (!ReleaseOne(member, budget - used)) continue;
    used = ledger_.kept_moves() - before;
    const std::uint32_t excess = ledger_.Excess(member);
    if (excess > 0) above.emplace(excess, order(member));
  }
  return used;
}

bool ColumnMatcher::ReleaseOne(MemberIndex member, std::uint32_t kept_moves_max) {
  if (good_search_.ReleaseDirectly(member)) return true;
  if (ledger_.HasFollower() && search_.ReleaseDirectly(member)) return true;
  if (failed_searches_ >= kMaxFailedSearches) return false;
  if (search_.Release(member, std::min(kept_moves_max, kFillMovesMax))) return true;
  ++failed_searches_;
  return false;
}

}  // namespace kvfabric
