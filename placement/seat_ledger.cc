#include "placement/seat_ledger.h"

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

SeatLedger::SeatLedger(SeatTable& table, const Options& options)
    : table_(table),
      options_(options),
      held_(options.seating.size(), 0),
      in_open_list_(options.seating.size(), 0),
      new_seats_(options.seating.size()) {
  std::uint32_t domains = 0;
  for (const Seating& seating : options_.seating) domains = std::max(domains, seating.domain + 1);
  domain_members_.resize(domains);
  open_in_domain_.resize(domains, 0);
  ListSeats();
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const auto member = static_cast<MemberIndex>(i);
    const std::uint32_t domain = options_.seating[i].domain;
    if (options_.quotas[i] > 0) domain_members_[domain].push_back(member);
    if (!IsOpen(member)) continue;
    const std::uint32_t open = options_.quotas[i] - held_[i];
    open_in_domain_[domain] += open;
    open_seats_ += open;
    ++open_members_;
    open_pool_.insert(open_pool_.end(), open, member);
    open_list_.push_back(member);
    in_open_list_[i] = 1;
  }
}

void SeatLedger::ListSeats() {
  for (SlotIndex slot = 0; slot < table_.slot_count; ++slot) {
    for (std::uint32_t c = options_.first_column; c < options_.end_column; ++c) {
      const MemberIndex owner = table_.owner[table_.Seat(slot, c)];
      if (owner != kNoOwner) ++held_[owner];
    }
  }
  kept_begin_.resize(held_.size() + 1, 0);
  for (std::size_t i = 0; i < held_.size(); ++i) kept_begin_[i + 1] = kept_begin_[i] + held_[i];
  kept_seats_.resize(kept_begin_.back());
  kept_sorted_.resize(held_.size(), 0);
  std::vector<std::size_t> next(kept_begin_.begin(), kept_begin_.end() - 1);
  for (SlotIndex slot = 0; slot < table_.slot_count; ++slot) {
    for (std::uint32_t c = options_.first_column; c < options_.end_column; ++c) {
      const std::size_t seat = table_.Seat(slot, c);
      if (table_.owner[seat] != kNoOwner) kept_seats_[next[table_.owner[seat]]++] = seat;
    }
  }
}

std::span<const std::size_t> SeatLedger::KeptSeats(MemberIndex member) {
  const std::span<std::size_t> seats(kept_seats_.data() + kept_begin_[member],
                                     kept_begin_[member + 1U] - kept_begin_[member]);
  if (kept_sorted_[member] == 0) {
    kept_sorted_[member] = 1;
    struct Entry {
      std::uint64_t bytes;
      std::uint64_t chance;  // spreads equal slots, so that no slot moves more often than others
      std::size_t seat;
    };
    std::vector<Entry> entries;
    entries.reserve(seats.size());
    for (const std::size_t seat : seats) {
      const std::uint64_t bytes =
          options_.slot_bytes.empty() ? 0 : options_.slot_bytes[table_.SlotOfSeat(seat)];
      entries.push_back({bytes, Chance(seat, member), seat});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      if (a.bytes != b.bytes) return a.bytes < b.bytes;
      if (a.chance != b.chance) return a.chance < b.chance;
      return a.seat < b.seat;
    });
    for (std::size_t i = 0; i < entries.size(); ++i) seats[i] = entries[i].seat;
  }
  return seats;
}

std::uint32_t SeatLedger::Excess(MemberIndex member) const {
  if (options_.seating[member].held || held_[member] <= options_.quotas[member]) return 0;
  return held_[member] - options_.quotas[member];
}

bool SeatLedger::Movable(std::size_t seat) const {
  if (table_.state[seat] != SeatState::kKept) return false;
  const SlotIndex slot = table_.SlotOfSeat(seat);
  if (table_.rebalanced[slot] != 0 || options_.seating[table_.owner[seat]].held) return false;
  if (table_.kept[slot] >= 2) return true;
  // The last former owner may still step back into an empty column behind the group.
  return HasFollower() && table_.owner[table_.Seat(slot, options_.end_column)] == kNoOwner;
}

std::uint32_t SeatLedger::OwnersInDomain(std::size_t seat, std::uint32_t domain) const {
  const std::size_t first = seat - table_.ColumnOfSeat(seat);
  std::uint32_t count = 0;
  for (std::size_t other = first; other < first + options_.end_column; ++other) {
    const MemberIndex owner = table_.owner[other];
    if (other != seat && owner != kNoOwner && options_.seating[owner].domain == domain) ++count;
  }
  return count;
}

SeatLedger::Fit SeatLedger::FitOf(std::size_t seat, MemberIndex member,
                                  std::uint32_t domain_limit) const {
  const std::size_t first = seat - table_.ColumnOfSeat(seat);
  const std::uint32_t domain = options_.seating[member].domain;
  std::uint32_t in_domain = 0;
  for (std::size_t other = first; other < first + options_.end_column; ++other) {
    const MemberIndex owner = table_.owner[other];
    if (other == seat || owner == kNoOwner) continue;
    if (owner == member) return Fit::kNo;
    if (options_.seating[owner].domain == domain && ++in_domain >= domain_limit) return Fit::kNo;
  }
  if (HasFollower()) {
    const MemberIndex follower = table_.owner[first + options_.end_column];
    if (follower != kNoOwner && options_.seating[follower].domain == domain) {
      return Fit::kTolerable;
    }
  }
  return Fit::kGood;
}

// Whether any open member is in a domain that the slot can still take.
bool SeatLedger::AnyDomainOpen(std::size_t seat, std::uint32_t domain_limit) const {
  const std::size_t first = seat - table_.ColumnOfSeat(seat);
  std::uint32_t reachable = open_seats_;
  for (std::size_t other = first; other < first + options_.end_column; ++other) {
    const MemberIndex owner = table_.owner[other];
    if (other == seat || owner == kNoOwner) continue;
    const std::uint32_t domain = options_.seating[owner].domain;
    bool counted = false;
    for (std::size_t before = first; before < other; ++before) {
      const MemberIndex earlier = table_.owner[before];
      counted = counted || (before != seat && earlier != kNoOwner &&
                            options_.seating[earlier].domain == domain);
    }
    if (!counted && OwnersInDomain(seat, domain) >= domain_limit) {
      reachable -= open_in_domain_[domain];
    }
  }
  return reachable > 0;
}

MemberIndex SeatLedger::DrawOpen(std::size_t seat, Fit at_least, std::uint32_t domain_limit) {
  constexpr std::uint32_t kFewMembers = 8;
  constexpr std::uint64_t kDraws = 8;
  if (open_seats_ == 0 || !AnyDomainOpen(seat, domain_limit)) return kNoOwner;
  // By open seats, so that members fill up evenly: cheap, and right nearly always.
  for (std::uint64_t draw = 0; open_members_ > kFewMembers && draw < kDraws;) {
    const std::size_t at = Chance(seat, draw) % open_pool_.size();
    const MemberIndex member = open_pool_[at];
    if (!IsOpen(member)) {
      open_pool_[at] = open_pool_.back();
      open_pool_.pop_back();
      continue;
    }
    ++draw;
    if (FitOf(seat, member, domain_limit) < at_least) continue;
    open_pool_[at] = open_pool_.back();
    open_pool_.pop_back();
    return member;
  }
  const std::span<const MemberIndex> open = OpenMembers();
  const std::size_t start = Chance(seat, kDraws) % open.size();
  for (std::size_t i = 0; i < open.size(); ++i) {
    const MemberIndex member = open[(start + i) % open.size()];
    if (FitOf(seat, member, domain_limit) >= at_least) return member;
  }
  return kNoOwner;
}

std::span<const MemberIndex> SeatLedger::OpenMembers() {
  if (open_list_.size() != open_members_) {
    std::erase_if(open_list_, [this](MemberIndex member) {
      if (IsOpen(member)) return false;
      in_open_list_[member] = 0;
      return true;
    });
  }
  return open_list_;
}

MemberIndex SeatLedger::DrawOpenInDomain(std::size_t seat, std::uint32_t domain) const {
  const std::vector<MemberIndex>& members = domain_members_[domain];
  if (members.empty()) return kNoOwner;
  // Of two chances the one with more open seats, so that members fill up evenly.
  MemberIndex best = kNoOwner;
  for (std::uint64_t chance = 0; chance < 2; ++chance) {
    const std::size_t start = Chance(seat, 16 + chance) % members.size();
    for (std::size_t i = 0; i < members.size(); ++i) {
      const MemberIndex member = members[(start + i) % members.size()];
      if (!IsOpen(member) || FitOf(seat, member, options_.domain_limit) == Fit::kNo) continue;
      const bool more = best == kNoOwner || options_.quotas[member] - held_[member] >
                                                options_.quotas[best] - held_[best];
      if (more) best = member;
      break;
    }
  }
  return best;
}

void SeatLedger::Take(MemberIndex member) {
  if (IsOpen(member)) {
    --open_in_domain_[options_.seating[member].domain];
    --open_seats_;
    if (held_[member] + 1 == options_.quotas[member]) --open_members_;
  }
  ++held_[member];
}

void SeatLedger::Release(MemberIndex member) {
  KVF_CHECK(held_[member] > 0, "a member gives up a seat it does not hold");
  --held_[member];
  if (!IsOpen(member)) return;
  ++open_in_domain_[options_.seating[member].domain];
  ++open_seats_;
  if (held_[member] + 1 == options_.quotas[member]) ++open_members_;
  open_pool_.push_back(member);
  if (in_open_list_[member] == 0) {
    in_open_list_[member] = 1;
    open_list_.push_back(member);
  }
}

void SeatLedger::Place(std::size_t seat, MemberIndex member) {
  KVF_CHECK(table_.owner[seat] == kNoOwner, "placed on a seat that is taken");
  Take(member);
  table_.owner[seat] = member;
  table_.state[seat] = SeatState::kNew;
  new_seats_[member].push_back(seat);
  if (!HasFollower()) return;
  const SlotIndex slot = table_.SlotOfSeat(seat);
  const std::size_t follower = table_.Seat(slot, options_.end_column);
  if (table_.owner[follower] != member) return;
  // The follower is promoted: it stays an owner, so the slot stays as well kept as it was.
  table_.state[seat] = table_.state[follower];
  table_.rebalanced[slot] = 1;
  table_.owner[follower] = kNoOwner;
  table_.state[follower] = SeatState::kEmpty;
}

void SeatLedger::Move(std::size_t seat, MemberIndex to) {
  const MemberIndex from = table_.owner[seat];
  Release(from);
  Take(to);
  table_.owner[seat] = to;
  new_seats_[to].push_back(seat);
  if (table_.state[seat] != SeatState::kKept) return;
  const SlotIndex slot = table_.SlotOfSeat(seat);
  table_.state[seat] = SeatState::kNew;
  table_.rebalanced[slot] = 1;
  --table_.kept[slot];
  ++kept_moves_;
  if (HasFollower()) SettleFollower(seat, from, to);
}

// After a kept seat moved: the former owner takes the column behind the group if that is empty,
// or if it belonged to the member that moved up.
void SeatLedger::SettleFollower(std::size_t seat, MemberIndex from, MemberIndex to) {
  const SlotIndex slot = table_.SlotOfSeat(seat);
  const std::size_t follower = table_.Seat(slot, options_.end_column);
  if (table_.owner[follower] == to) {
    table_.state[seat] = table_.state[follower];
  } else if (table_.owner[follower] != kNoOwner) {
    return;
  }
  table_.owner[follower] = from;
  table_.state[follower] = SeatState::kKept;
  ++table_.kept[slot];
}

void SeatLedger::Vacate(std::size_t seat) {
  KVF_CHECK(Movable(seat), "vacated a seat that must stay");
  Release(table_.owner[seat]);
  table_.owner[seat] = kNoOwner;
  table_.state[seat] = SeatState::kEmpty;
  --table_.kept[table_.SlotOfSeat(seat)];
  table_.rebalanced[table_.SlotOfSeat(seat)] = 1;
  ++kept_moves_;
}

void SeatLedger::Reinstate(std::size_t seat, MemberIndex member) {
  Take(member);
  table_.owner[seat] = member;
  table_.state[seat] = SeatState::kKept;
  ++table_.kept[table_.SlotOfSeat(seat)];
  table_.rebalanced[table_.SlotOfSeat(seat)] = 0;
  --kept_moves_;
}

}  // namespace kvfabric
