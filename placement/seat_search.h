#pragma once

// SeatSearch: the shortest chain of moves that fills an empty seat, or takes a seat from a member
// above quota, where no open member fits directly (an augmenting path: seat 1 goes from a to b,
// seat 2 from b to c, c is open). Seats placed by this very plan move for free, kept ones cost one
// move each; chains are searched level by level in kept moves.
//
// Owned by one Plan() call; one thread. A chain is applied from its open end, and each of its moves
// is checked again then: if an earlier one spoilt it, the rest is left undone and the table is as
// valid as before, only less is gained.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/seat_ledger.h"

namespace kvfabric {

class SeatSearch {
 public:
  explicit SeatSearch(SeatLedger& ledger);  // borrowed, outlives this

  struct Limits {
    std::uint32_t kept_moves_max = 0;
    SeatLedger::Fit at_least = SeatLedger::Fit::kTolerable;  // of every seat along the chain
  };
  // False = no such chain within the limits.
  bool Fill(std::size_t seat, const Limits& limits);
  bool Release(MemberIndex member, const Limits& limits);

 private:
  struct Hop {  // how a member was reached: it would take `seat` from `from`
    std::size_t seat = 0;
    MemberIndex from = kNoOwner;  // kNoOwner: the start of the chain
  };

  void Begin();
  void Visit(std::size_t seat, MemberIndex from);
  bool Search();
  bool FinishAt(MemberIndex member, std::span<const std::size_t> seats, SeatState state);
  void ExpandAt(MemberIndex member, std::span<const std::size_t> seats, SeatState state);
  bool Usable(std::size_t seat, MemberIndex member, SeatState state) const;
  bool Apply(std::size_t last_seat, MemberIndex from, MemberIndex to);

  SeatLedger& ledger_;
  Limits limits_;  // of the search under way
  std::vector<Hop> reached_by_;
  std::vector<std::vector<MemberIndex>> unvisited_;  // by domain
  std::vector<std::uint32_t> unvisited_domains_;
  std::vector<MemberIndex> reached_;  // in order
};

}  // namespace kvfabric
