#include "placement/primary_balance.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "placement/quota.h"

namespace kvfabric {
namespace {

constexpr std::size_t kNoSeat = ~std::size_t{0};

// First places as a graph: member a has an edge to b where a slot of a's lists b too.
class FirstPlaces {
 public:
  FirstPlaces(SeatTable& table, std::uint32_t byte_columns, std::size_t members)
      : table_(table),
        columns_(byte_columns),
        seats_(members, 0),
        firsts_(members, 0),
        slots_(members),
        reached_by_(members, kNoSeat) {}

  void Balance();

 private:
  void Count();
  bool MayLead(std::size_t seat) const;
  bool HandOver(MemberIndex member);
  void ApplyChain(std::size_t last_seat, MemberIndex start);
  bool Below(MemberIndex member) const { return firsts_[member] < quotas_[member]; }

  SeatTable& table_;
  const std::uint32_t columns_;
  std::vector<std::uint32_t> seats_;
  std::vector<std::uint32_t> firsts_;
  std::vector<std::vector<SlotIndex>> slots_;  // where a member is or was first
  std::vector<std::uint32_t> quotas_;
  std::vector<std::size_t> reached_by_;  // the seat through which a member gets a first place
  std::vector<MemberIndex> reached_;
};

void FirstPlaces::Count() {
  for (SlotIndex slot = 0; slot < table_.slot_count; ++slot) {
    for (std::uint32_t c = 0; c < columns_; ++c) {
      const MemberIndex owner = table_.owner[table_.Seat(slot, c)];
      if (owner == kNoOwner) continue;
      ++seats_[owner];
      if (c > 0) continue;
      ++firsts_[owner];
      slots_[owner].push_back(slot);
    }
  }
}

bool FirstPlaces::MayLead(std::size_t seat) const {
  if (table_.owner[seat] == kNoOwner) return false;
  const SlotIndex slot = table_.SlotOfSeat(seat);
  return table_.bereft[slot] == 0 || table_.kept[slot] == 0 ||
         table_.state[seat] == SeatState::kKept;
}

void FirstPlaces::Balance() {
  Count();
  std::vector<QuotaClaim> claims;
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    claims.push_back({.weight = seats_[i], .cap = seats_[i], .holds = firsts_[i]});
  }
  quotas_ = ShareSeats(claims, table_.slot_count);
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const auto member = static_cast<MemberIndex>(i);
    while (firsts_[i] > quotas_[i] && HandOver(member)) {
    }
  }
}

// Gives one first place of `member` to one below its share, over as few slots as possible.
bool FirstPlaces::HandOver(MemberIndex start) {
  std::fill(reached_by_.begin(), reached_by_.end(), kNoSeat);
  reached_.assign(1, start);
  for (std::size_t i = 0; i < reached_.size(); ++i) {
    const MemberIndex member = reached_[i];
    std::vector<SlotIndex>& slots = slots_[member];
    std::erase_if(slots, [&](SlotIndex slot) {
      return table_.owner[table_.Seat(slot, 0)] != member;  // handed over since
    });
    for (const SlotIndex slot : slots) {
      for (std::uint32_t c = 1; c < columns_; ++c) {
        const std::size_t seat = table_.Seat(slot, c);
        if (!MayLead(seat)) continue;
        const MemberIndex other = table_.owner[seat];
        if (other == start || reached_by_[other] != kNoSeat) continue;
        reached_by_[other] = seat;
        if (Below(other)) {
          ApplyChain(seat, start);
          return true;
        }
        reached_.push_back(other);
      }
    }
  }
  return false;
}

void FirstPlaces::ApplyChain(std::size_t last_seat, MemberIndex start) {
  std::size_t seat = last_seat;
  while (true) {
    const SlotIndex slot = table_.SlotOfSeat(seat);
    const std::size_t first = table_.Seat(slot, 0);
    const MemberIndex gives = table_.owner[first];
    const MemberIndex takes = table_.owner[seat];
    std::swap(table_.owner[first], table_.owner[seat]);
    std::swap(table_.state[first], table_.state[seat]);
    --firsts_[gives];
    ++firsts_[takes];
    slots_[takes].push_back(slot);
    if (gives == start) return;
    seat = reached_by_[gives];
  }
}

}  // namespace

void BalanceFirstOwners(SeatTable& table, std::uint32_t byte_columns,
                        std::span<const Seating> seating) {
  if (byte_columns < 2) return;
  for (SlotIndex slot = 0; slot < table.slot_count; ++slot) {
    if (table.bereft[slot] == 0) continue;
    // Survivors first, otherwise in the order they are in.
    for (std::uint32_t c = 1; c < byte_columns; ++c) {
      for (std::uint32_t d = c; d > 0; --d) {
        const std::size_t seat = table.Seat(slot, d);
        if (table.state[seat] != SeatState::kKept || table.state[seat - 1] == SeatState::kKept) {
          break;
        }
        std::swap(table.owner[seat], table.owner[seat - 1]);
        std::swap(table.state[seat], table.state[seat - 1]);
      }
    }
  }
  FirstPlaces(table, byte_columns, seating.size()).Balance();
}

}  // namespace kvfabric
