#pragma once

// SeatTable and SeatLedger: the table while it is being planned, and the accounts of one group of
// its columns: who holds how many seats, who is below quota ("open"), which seats may move where.
//
// A seat is one entry of the table. Both are owned by one Plan() call; one thread. Deterministic:
// probes come from MixBits of the seat, lists are in index order.
//
// Safety rule kept here: a seat of the previous map moves only if another former owner of its slot
// stays and no seat of that slot has moved for balance in this plan; held (Suspect) members keep
// theirs.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/plan_support.h"

namespace kvfabric {

enum class SeatState : std::uint8_t {
  kEmpty,
  kKept,  // this member owned the slot before
  kNew,
};

struct SeatTable {
  std::uint32_t slot_count = 0;
  std::uint32_t columns = 0;
  std::vector<MemberIndex> owner;        // slot-major, kNoOwner = empty
  std::vector<SeatState> state;          // of each seat
  std::vector<std::uint8_t> kept;        // kept seats of each slot
  std::vector<std::uint8_t> rebalanced;  // 1: a seat of the slot moved for balance
  std::vector<std::uint8_t> bereft;      // 1: the slot lost an owner by force

  std::size_t Seat(SlotIndex slot, std::uint32_t column) const {
    return std::size_t{slot} * columns + column;
  }
  SlotIndex SlotOfSeat(std::size_t seat) const { return static_cast<SlotIndex>(seat / columns); }
  std::uint32_t ColumnOfSeat(std::size_t seat) const {
    return static_cast<std::uint32_t>(seat % columns);
  }
};

class SeatLedger {
 public:
  struct Options {
    // The group is [first_column, end_column). Columns before it restrict it (they are settled);
    // a column behind it follows it: it is avoided where possible and gives way where not.
    std::uint32_t first_column = 0;
    std::uint32_t end_column = 1;
    std::uint32_t domain_limit = 1;         // most owners of a slot in one domain, up to end_column
    std::span<const Seating> seating;       // borrowed
    std::span<const std::uint32_t> quotas;  // borrowed
    std::span<const std::uint64_t> slot_bytes;  // borrowed; empty = all alike
    std::uint64_t seed = 0;
  };
  enum class Fit : std::uint8_t {
    kNo,
    kTolerable,  // the column behind the group would have to move or shares the domain
    kGood,
  };

  // `table` is borrowed, outlives this and is changed in place.
  SeatLedger(SeatTable& table, const Options& options);

  const SeatTable& table() const { return table_; }
  const Options& options() const { return options_; }
  std::uint32_t domain_count() const { return static_cast<std::uint32_t>(domain_members_.size()); }
  bool HasFollower() const { return options_.end_column < table_.columns; }

  std::uint32_t held(MemberIndex member) const { return held_[member]; }
  bool IsOpen(MemberIndex member) const { return held_[member] < options_.quotas[member]; }
  // Seats above quota; 0 for held members.
  std::uint32_t Excess(MemberIndex member) const;
  std::uint32_t open_seats() const { return open_seats_; }
  std::uint32_t OpenInDomain(std::uint32_t domain) const { return open_in_domain_[domain]; }
  // Kept seats moved so far.
  std::uint32_t kept_moves() const { return kept_moves_; }

  bool Movable(std::size_t seat) const;
  // `domain_limit` in place of the one in the options.
  Fit FitOf(std::size_t seat, MemberIndex member, std::uint32_t domain_limit) const;
  // Owners of the seat's slot in `domain`, the seat itself and columns behind the group left out.
  std::uint32_t OwnersInDomain(std::size_t seat, std::uint32_t domain) const;

  // Every open member; valid until the next change.
  std::span<const MemberIndex> OpenMembers();
  // An open member that fits `seat` at least so well, or kNoOwner.
  MemberIndex DrawOpen(std::size_t seat, Fit at_least, std::uint32_t domain_limit);
  MemberIndex DrawOpenInDomain(std::size_t seat, std::uint32_t domain) const;

  void Place(std::size_t seat, MemberIndex member);  // the seat is empty
  void Move(std::size_t seat, MemberIndex to);
  void Vacate(std::size_t seat);                         // a kept seat
  void Reinstate(std::size_t seat, MemberIndex member);  // undoes Vacate

  // Seats that `member` had before, lightest slot first; some may be its own no longer.
  std::span<const std::size_t> KeptSeats(MemberIndex member);
  // Seats given to `member` by this plan; some may be its own no longer.
  std::span<const std::size_t> NewSeats(MemberIndex member) const { return new_seats_[member]; }

 private:
  void ListSeats();
  void Take(MemberIndex member);
  void Release(MemberIndex member);
  bool AnyDomainOpen(std::size_t seat, std::uint32_t domain_limit) const;
  void SettleFollower(std::size_t seat, MemberIndex from, MemberIndex to);
  std::uint64_t Chance(std::size_t seat, std::uint64_t salt) const {
    return MixBits(options_.seed ^ MixBits(seat * 64 + salt));
  }

  SeatTable& table_;
  const Options options_;

  std::vector<std::uint32_t> held_;
  std::vector<std::uint32_t> open_in_domain_;
  std::uint32_t open_seats_ = 0;
  std::uint32_t open_members_ = 0;
  std::uint32_t kept_moves_ = 0;
  std::vector<MemberIndex> open_pool_;  // a member once per open seat; stale ones drop when drawn
  std::vector<MemberIndex> open_list_;  // open members once; stale ones drop when listed
  std::vector<std::uint8_t> in_open_list_;
  std::vector<std::vector<MemberIndex>> domain_members_;

  std::vector<std::size_t> kept_seats_;  // by member, packed
  std::vector<std::size_t> kept_begin_;
  std::vector<std::uint8_t> kept_sorted_;
  std::vector<std::vector<std::size_t>> new_seats_;
};

}  // namespace kvfabric
