#include "placement/seat_search.h"

#include <algorithm>
#include <limits>

namespace kvfabric {
namespace {

constexpr std::size_t kNoSeat = std::numeric_limits<std::size_t>::max();

}  // namespace

SeatSearch::SeatSearch(SeatLedger& ledger, Fit at_least, std::uint32_t domain_limit)
    : ledger_(ledger),
      at_least_(at_least),
      domain_limit_(domain_limit),
      kept_cursors_(ledger.options().seating.size()),
      new_cursors_(ledger.options().seating.size()),
      reached_by_(ledger.options().seating.size()) {}

bool SeatSearch::ReleaseDirectly(MemberIndex member) {
  const std::span<const MemberIndex> open = ledger_.OpenMembers();
  if (open.empty()) return false;
  // From another one each time, so that open members fill up evenly.
  const std::size_t start = MixBits(ledger_.kept_moves()) % open.size();
  for (std::size_t i = 0; i < open.size(); ++i) {
    const MemberIndex to = open[(start + i) % open.size()];
    const std::size_t seat = SeatFor(member, to, SeatState::kKept);
    if (seat == kNoSeat) continue;
    ledger_.Move(seat, to);
    return true;
  }
  return false;
}

bool SeatSearch::Release(MemberIndex member, std::uint32_t kept_moves_max) {
  if (ledger_.open_seats() == 0) return false;
  Begin();
  std::erase(unreached_, member);
  Reach(member, {kNoSeat, kNoOwner});
  return Search(kept_moves_max);
}

bool SeatSearch::Fill(std::size_t seat, std::uint32_t kept_moves_max) {
  if (ledger_.open_seats() == 0) return false;
  Begin();
  std::erase_if(unreached_, [&](MemberIndex member) {
    if (!Fits(seat, member)) return false;
    Reach(member, {seat, kNoOwner});
    return true;
  });
  return Search(kept_moves_max);
}

void SeatSearch::Begin() {
  reached_.clear();
  unreached_.clear();
  for (std::size_t i = 0; i < reached_by_.size(); ++i) {
    if (ledger_.options().quotas[i] > 0) unreached_.push_back(static_cast<MemberIndex>(i));
  }
}

void SeatSearch::Reach(MemberIndex member, const Hop& hop) {
  reached_by_[member] = hop;
  reached_.push_back(member);
}

bool SeatSearch::Search(std::uint32_t kept_moves_max) {
  std::size_t level_begin = 0;
  for (std::uint32_t kept_moves = 0;; ++kept_moves) {
    // Members reached through new seats join this level: those moves are free.
    for (std::size_t i = level_begin; i < reached_.size(); ++i) {
      const MemberIndex member = reached_[i];
      if (ledger_.IsOpen(member)) return Apply(kNoSeat, member, member);
      if (FinishAt(member, SeatState::kNew)) return true;
      ExpandAt(member, SeatState::kNew);
    }
    if (kept_moves == kept_moves_max) return false;
    const std::size_t level_end = reached_.size();
    for (std::size_t i = level_begin; i < level_end; ++i) {
      if (FinishAt(reached_[i], SeatState::kKept)) return true;
    }
    for (std::size_t i = level_begin; i < level_end; ++i) ExpandAt(reached_[i], SeatState::kKept);
    if (reached_.size() == level_end) return false;
    level_begin = level_end;
  }
}

bool SeatSearch::Fits(std::size_t seat, MemberIndex member) const {
  return ledger_.FitOf(seat, member, domain_limit_) >= at_least_;
}

bool SeatSearch::Usable(std::size_t seat, MemberIndex member, SeatState state) const {
  const SeatTable& table = ledger_.table();
  if (table.owner[seat] != member || table.state[seat] != state) return false;
  return state == SeatState::kNew || ledger_.Movable(seat);
}

std::size_t SeatSearch::SeatFor(MemberIndex from, MemberIndex to, SeatState state) {
  const bool kept = state == SeatState::kKept;
  const std::span<const std::size_t> seats =
      kept ? ledger_.KeptSeats(from) : ledger_.NewSeats(from);
  EdgeCursors& cursors = kept ? kept_cursors_ : new_cursors_;
  const std::size_t at = cursors.Next(from, to, seats.size(), [&](std::size_t i) {
    return Usable(seats[i], from, state) && Fits(seats[i], to);
  });
  return at < seats.size() ? seats[at] : kNoSeat;
}

bool SeatSearch::FinishAt(MemberIndex member, SeatState state) {
  for (const MemberIndex to : ledger_.OpenMembers()) {
    if (to == member) continue;
    const std::size_t seat = SeatFor(member, to, state);
    if (seat != kNoSeat) return Apply(seat, member, to);
  }
  return false;
}

void SeatSearch::ExpandAt(MemberIndex member, SeatState state) {
  std::erase_if(unreached_, [&](MemberIndex other) {
    const std::size_t seat = SeatFor(member, other, state);
    if (seat == kNoSeat) return false;
    Reach(other, {seat, member});
    return true;
  });
}

bool SeatSearch::Apply(std::size_t last_seat, MemberIndex from, MemberIndex to) {
  if (last_seat != kNoSeat) ledger_.Move(last_seat, to);
  for (MemberIndex taker = from;;) {
    const Hop hop = reached_by_[taker];
    if (hop.seat == kNoSeat) return true;
    if (!Fits(hop.seat, taker)) return false;
    if (hop.from == kNoOwner) {
      ledger_.Place(hop.seat, taker);
      return true;
    }
    if (!Usable(hop.seat, hop.from, ledger_.table().state[hop.seat])) return false;
    ledger_.Move(hop.seat, taker);
    taker = hop.from;
  }
}

}  // namespace kvfabric
