#include "placement/seat_search.h"

#include <algorithm>
#include <limits>

namespace kvfabric {
namespace {

constexpr std::size_t kNoSeat = std::numeric_limits<std::size_t>::max();

}  // namespace

SeatSearch::SeatSearch(SeatLedger& ledger)
    : ledger_(ledger),
      reached_by_(ledger.options().seating.size()),
      unvisited_(ledger.domain_count()) {}

bool SeatSearch::Fill(std::size_t seat, const Limits& limits) {
  if (ledger_.open_seats() == 0) return false;
  limits_ = limits;
  Begin();
  Visit(seat, kNoOwner);
  return Search();
}

bool SeatSearch::Release(MemberIndex member, const Limits& limits) {
  if (ledger_.open_seats() == 0) return false;
  limits_ = limits;
  Begin();
  std::erase(unvisited_[ledger_.options().seating[member].domain], member);
  reached_by_[member] = {kNoSeat, kNoOwner};
  reached_.push_back(member);
  return Search();
}

void SeatSearch::Begin() {
  reached_.clear();
  unvisited_domains_.clear();
  for (std::uint32_t domain = 0; domain < ledger_.domain_count(); ++domain) {
    const std::span<const MemberIndex> members = ledger_.DomainMembers(domain);
    unvisited_[domain].assign(members.begin(), members.end());
    if (!members.empty()) unvisited_domains_.push_back(domain);
  }
}

// Marks every member that could take `seat` as reached.
void SeatSearch::Visit(std::size_t seat, MemberIndex from) {
  std::size_t kept_domains = 0;
  for (const std::uint32_t domain : unvisited_domains_) {
    std::vector<MemberIndex>& members = unvisited_[domain];
    if (ledger_.OwnersInDomain(seat, domain) < ledger_.domain_limit()) {
      std::erase_if(members, [&](MemberIndex member) {
        if (ledger_.FitOf(seat, member) < limits_.at_least) return false;
        reached_by_[member] = {seat, from};
        reached_.push_back(member);
        return true;
      });
    }
    if (!members.empty()) unvisited_domains_[kept_domains++] = domain;
  }
  unvisited_domains_.resize(kept_domains);
}

bool SeatSearch::Search() {
  std::size_t level_begin = 0;
  for (std::uint32_t kept_moves = 0;; ++kept_moves) {
    // Members reached through new seats join this level: those moves are free.
    for (std::size_t i = level_begin; i < reached_.size(); ++i) {
      const MemberIndex member = reached_[i];
      if (FinishAt(member, ledger_.NewSeats(member), SeatState::kNew)) return true;
      ExpandAt(member, ledger_.NewSeats(member), SeatState::kNew);
    }
    if (kept_moves == limits_.kept_moves_max) return false;
    const std::size_t level_end = reached_.size();
    for (std::size_t i = level_begin; i < level_end; ++i) {
      const MemberIndex member = reached_[i];
      if (FinishAt(member, ledger_.KeptSeats(member), SeatState::kKept)) return true;
    }
    for (std::size_t i = level_begin; i < level_end; ++i) {
      if (unvisited_domains_.empty()) break;
      ExpandAt(reached_[i], ledger_.KeptSeats(reached_[i]), SeatState::kKept);
    }
    if (reached_.size() == level_end) return false;
    level_begin = level_end;
  }
}

bool SeatSearch::Usable(std::size_t seat, MemberIndex member, SeatState state) const {
  const SeatTable& table = ledger_.table();
  if (table.owner[seat] != member || table.state[seat] != state) return false;
  return state == SeatState::kNew || ledger_.Movable(seat);
}

bool SeatSearch::FinishAt(MemberIndex member, std::span<const std::size_t> seats, SeatState state) {
  if (ledger_.IsOpen(member)) return Apply(kNoSeat, member, member);
  for (const std::size_t seat : seats) {
    if (!Usable(seat, member, state)) continue;
    const MemberIndex to = ledger_.DrawOpen(seat, limits_.at_least);
    if (to != kNoOwner) return Apply(seat, member, to);
  }
  return false;
}

void SeatSearch::ExpandAt(MemberIndex member, std::span<const std::size_t> seats, SeatState state) {
  for (const std::size_t seat : seats) {
    if (unvisited_domains_.empty()) return;
    if (Usable(seat, member, state)) Visit(seat, member);
  }
}

bool SeatSearch::Apply(std::size_t last_seat, MemberIndex from, MemberIndex to) {
  if (last_seat != kNoSeat) ledger_.Move(last_seat, to);
  for (MemberIndex taker = from;;) {
    const Hop hop = reached_by_[taker];
    if (hop.seat == kNoSeat) return true;
    if (ledger_.FitOf(hop.seat, taker) < limits_.at_least) return false;
    if (hop.from == kNoOwner) {
      ledger_.Place(hop.seat, taker);
      return true;
    }
    const SeatTable& table = ledger_.table();
    if (!Usable(hop.seat, hop.from, table.state[hop.seat])) return false;
    ledger_.Move(hop.seat, taker);
    taker = hop.from;
  }
}

}  // namespace kvfabric
