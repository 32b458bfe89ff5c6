#include "placement/primary_balance.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "placement/edge_cursors.h"
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
        looked_at_(members, 0),
        cursors_(members),
        reached_by_(members, kNoSeat) {}

  void Balance();

 private:
  void Count();
  bool MayLead(std::size_t seat) const;
  std::size_t SeatFor(MemberIndex from, MemberIndex to);
  bool HandOverDirectly(MemberIndex start);
  bool HandOver(MemberIndex start);
  void ApplyChain(std::size_t last_seat, MemberIndex start);
  bool Below(MemberIndex member) const { return firsts_[member] < quotas_[member]; }

  SeatTable& table_;
  const std::uint32_t columns_;
  std::vector<std::uint32_t> seats_;
  std::vector<std::uint32_t> firsts_;
  std::vector<std::vector<SlotIndex>> slots_;  // where a member is or was first
  std::vector<std::size_t> looked_at_;         // how far HandOverDirectly() is in slots_
  EdgeCursors cursors_;                        // over slots_
  std::vector<std::uint32_t> quotas_;
  std::vector<std::size_t> reached_by_;  // the seat through which a member gets a first place
  std::vector<MemberIndex> unreached_;
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
    while (firsts_[i] > quotas_[i] && HandOverDirectly(member)) {
    }
  }
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const auto member = static_cast<MemberIndex>(i);
    while (firsts_[i] > quotas_[i] && HandOver(member)) {
    }
  }
}

// A seat with which `to` could become first in a slot where `from` is, or kNoSeat.
std::size_t FirstPlaces::SeatFor(MemberIndex from, MemberIndex to) {
  const std::vector<SlotIndex>& slots = slots_[from];
  std::size_t seat = kNoSeat;
  cursors_.Next(from, to, slots.size(), [&](std::size_t i) {
    const std::size_t first = table_.Seat(slots[i], 0);
    if (table_.owner[first] != from) return false;  // handed over since
    for (std::size_t other = first + 1; other < first + columns_; ++other) {
      if (table_.owner[other] == to && MayLead(other)) seat = other;
    }
    return seat != kNoSeat;
  });
  return seat;
}

// Gives one first place of `start` to a member below its share that its slot lists too. Members
// only ever rise to their share, so each slot is looked at once.
bool FirstPlaces::HandOverDirectly(MemberIndex start) {
  for (std::size_t& at = looked_at_[start]; at < slots_[start].size(); ++at) {
    const std::size_t first = table_.Seat(slots_[start][at], 0);
    if (table_.owner[first] != start) continue;
    for (std::size_t other = first + 1; other < first + columns_; ++other) {
      if (!MayLead(other) || !Below(table_.owner[other])) continue;
      ApplyChain(other, start);
      return true;
    }
  }
  return false;
}

// The same over as few slots as possible, where no slot of its own will do.
bool FirstPlaces::HandOver(MemberIndex start) {
  reached_.assign(1, start);
  unreached_.clear();
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i] > 0 && i != start) unreached_.push_back(static_cast<MemberIndex>(i));
  }
  for (std::size_t i = 0; i < reached_.size(); ++i) {
    MemberIndex below = kNoOwner;
    std::erase_if(unreached_, [&](MemberIndex other) {
      const std::size_t seat = below == kNoOwner ? SeatFor(reached_[i], other) : kNoSeat;
      if (seat == kNoSeat) return false;
      reached_by_[other] = seat;
      if (Below(other)) below = other;
      reached_.push_back(other);
      return true;
    });
    if (below == kNoOwner) continue;
    ApplyChain(reached_by_[below], start);
    return true;
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
