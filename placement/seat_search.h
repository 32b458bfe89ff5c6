#pragma once

// SeatSearch: moves seats between members: from one above quota to an open one, and where no open
// member fits directly, along the shortest chain of moves (an augmenting path: seat 1 goes from a
// to b, seat 2 from b to c, c is open). Seats placed by this very plan move for free, kept ones
// cost one move each; chains are searched level by level in kept moves, the lightest slots first.
//
// Owned by one Plan() call; one thread. A chain is applied from its open end, and each of its moves
// is checked again then: if an earlier one spoilt it, the rest is left undone and the table is as
// valid as before, only less is gained.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/edge_cursors.h"
#include "placement/seat_ledger.h"

namespace kvfabric {

class SeatSearch {
 public:
  using Fit = SeatLedger::Fit;

  // `ledger` is borrowed and outlives this. Every seat along a chain must fit `at_least` so well,
  // in domains that have at most `domain_limit` owners of a slot.
  SeatSearch(SeatLedger& ledger, Fit at_least, std::uint32_t domain_limit);

  // Moves one kept seat of `member` to an open member; false = none fits.
  bool ReleaseDirectly(MemberIndex member);
  // Both move at most `kept_moves_max` kept seats; false = no such chain.
  bool Release(MemberIndex member, std::uint32_t kept_moves_max);
  bool Fill(std::size_t seat, std::uint32_t kept_moves_max);

 private:
  struct Hop {  // how a member was reached: it would take `seat` from `from`
    std::size_t seat = 0;
    MemberIndex from = kNoOwner;  // kNoOwner: the start of the chain
  };

  void Begin();
  void Reach(MemberIndex member, const Hop& hop);
  bool Search(std::uint32_t kept_moves_max);
  bool FinishAt(MemberIndex member, SeatState state);
  void ExpandAt(MemberIndex member, SeatState state);
  // A seat of `from` in `state` that could go to `to`, or kNoSeat.
  std::size_t SeatFor(MemberIndex from, MemberIndex to, SeatState state);
  bool Fits(std::size_t seat, MemberIndex member) const;
  bool Usable(std::size_t seat, MemberIndex member, SeatState state) const;
  bool Apply(std::size_t last_seat, MemberIndex from, MemberIndex to);

  SeatLedger& ledger_;
  const Fit at_least_;
  const std::uint32_t domain_limit_;
  EdgeCursors kept_cursors_;
  EdgeCursors new_cursors_;

  // The search under way.
  std::vector<Hop> reached_by_;
  std::vector<MemberIndex> unreached_;
  std::vector<MemberIndex> reached_;  // in order
};

}  // namespace kvfabric
