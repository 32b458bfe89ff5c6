#pragma once

// ColumnMatcher: brings one group of columns (byte columns, or directory columns) of a table to
// its quotas: fills empty seats, separates owners of a slot that share a failure domain, and moves
// seats from members above quota to members below.
//
// Owned by one Plan() call; one thread. Deterministic. Bounded: after kMaxFailedSearches searches
// in vain it stops searching and reports what is left.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/seat_ledger.h"
#include "placement/seat_search.h"

namespace kvfabric {

class ColumnMatcher {
 public:
  // `table` is borrowed, outlives this and is changed in place.
  ColumnMatcher(SeatTable& table, const SeatLedger::Options& options);

  // Fills as many empty seats as the quotas have; domains are shared only where nothing else fits.
  void FillEmptySeats();
  // Both move at most `budget` seats that were in the previous map and return how many they moved.
  std::uint32_t SeparateDomains(std::uint32_t budget);
  std::uint32_t MoveToQuota(std::uint32_t budget);

  std::uint32_t held(MemberIndex member) const { return ledger_.held(member); }
  // Seats left for the next plan: above quota, or sharing a domain but not to be moved in this one.
  std::uint32_t RemainingSeats() const;

 private:
  void PromoteFollowers();
  std::vector<SlotIndex> SlotsWithEmptySeats();
  void FillSlot(SlotIndex slot, std::uint32_t slots_left, std::vector<std::size_t>& unfilled);
  void FindTightDomains(std::uint32_t slots_left);
  MemberIndex DrawTight(std::size_t seat, std::uint32_t slots_left);
  void FillStubborn(std::size_t seat);
  bool PlaceOpen(std::size_t seat, std::uint32_t domain_limit);
  bool TryFill(SeatSearch& search, std::size_t seat, std::uint32_t kept_moves_max);
  bool SharesDomain(std::size_t seat) const;
  bool SeparateSeat(std::size_t seat, std::uint32_t kept_moves_max);
  bool ReleaseOne(MemberIndex member, std::uint32_t kept_moves_max);

  SeatLedger ledger_;
  SeatSearch good_search_;     // leaves the column behind the group alone
  SeatSearch search_;          // within the domain limit
  SeatSearch relaxed_search_;  // against it
  std::uint32_t failed_searches_ = 0;
  std::uint32_t deferred_separations_ = 0;
  std::vector<std::uint32_t> blocked_slots_;  // by domain: slots left to fill that cannot take it
  std::vector<std::uint32_t> tight_domains_;  // nearly every slot left must take these
};

}  // namespace kvfabric
