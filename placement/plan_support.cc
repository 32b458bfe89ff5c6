#include "placement/plan_support.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/checksum.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kMaxWeight = std::uint64_t{1} << 53U;
constexpr std::uint32_t kMaxPermille = 1000;
// Total weight after scaling: leaves room for products with seats in 64 bits (quota.h).
constexpr int kScaledBits = 30;

using Identity = std::pair<std::string, std::string>;

Identity IdentityOf(const Member& member) { return {member.node_name, member.agent_uid}; }

Status PlanFault(const std::string& cause) { return InvalidArgument("shard map: plan: " + cause); }

Status CheckShape(const PlanInput& input) {
  if (!IsValidSlotCount(input.slot_count)) {
    return PlanFault("slot count " + std::to_string(input.slot_count) +
                     " is not one of 16384, 32768, 65536, 131072");
  }
  if (input.replicas < 1 || input.replicas > kMaxReplicas) {
    return PlanFault("replicas " + std::to_string(input.replicas) + " out of range (1..3)");
  }
  if (!input.slot_bytes.empty() && input.slot_bytes.size() != input.slot_count) {
    return PlanFault("bytes of " + std::to_string(input.slot_bytes.size()) + " slots (need " +
                     std::to_string(input.slot_count) + " or none)");
  }
  if (input.previous == nullptr) return Status::Ok();
  if (input.previous->slot_count != input.slot_count) {
    return PlanFault("the previous map has " + std::to_string(input.previous->slot_count) +
                     " slots, not " + std::to_string(input.slot_count) +
                     ": a pool's slot count cannot change");
  }
  return input.previous->Validate().WithContext("previous map");
}

Status CheckMembers(const PlanInput& input) {
  if (input.members.size() > kMaxMembers) {
    return PlanFault(std::to_string(input.members.size()) + " members (at most 1024)");
  }
  std::set<Identity> identities;
  for (const PlanMember& wanted : input.members) {
    const Member& member = wanted.member;
    if (member.node_name.empty()) return PlanFault("a member has no node name");
    if (!identities.insert(IdentityOf(member)).second) {
      return PlanFault("member " + member.node_name + " with agent " + member.agent_uid +
                       " is listed twice");
    }
    if (member.weight > kMaxWeight) {
      return PlanFault("member " + member.node_name + " reports " + std::to_string(member.weight) +
                       " usable bytes (at most 2^53)");
    }
    if (wanted.quota_permille > kMaxPermille) {
      return PlanFault("member " + member.node_name + " has a join share of " +
                       std::to_string(wanted.quota_permille) + " permille (at most 1000)");
    }
  }
  return Status::Ok();
}

// Previous members in their order, then the new ones by identity.
std::vector<const PlanMember*> OrderMembers(const PlanInput& input) {
  std::map<Identity, const PlanMember*> by_identity;
  for (const PlanMember& wanted : input.members) {
    by_identity.emplace(IdentityOf(wanted.member), &wanted);
  }
  std::vector<const PlanMember*> ordered;
  ordered.reserve(input.members.size());
  if (input.previous != nullptr) {
    for (const Member& member : input.previous->members) {
      const auto found = by_identity.find(IdentityOf(member));
      if (found == by_identity.end()) continue;
      ordered.push_back(found->second);
      by_identity.erase(found);
    }
  }
  for (const auto& [identity, wanted] : by_identity) ordered.push_back(wanted);
  return ordered;
}

bool WithinDeadBand(std::uint64_t before, std::uint64_t now, std::uint32_t percent) {
  const std::uint64_t difference = before > now ? before - now : now - before;
  return difference <= before / 100 * percent + before % 100 * percent / 100;
}

void AddMembers(const PlanInput& input, PlanFrame& frame) {
  std::map<Identity, MemberIndex> index_now;
  std::map<Identity, std::uint64_t> weight_before;
  if (input.previous != nullptr) {
    for (const Member& member : input.previous->members) {
      weight_before.emplace(IdentityOf(member), member.weight);
    }
  }
  for (const PlanMember* wanted : OrderMembers(input)) {
    Member member = wanted->member;
    const auto before = weight_before.find(IdentityOf(member));
    const bool unchanged =
        before != weight_before.end() &&
        WithinDeadBand(before->second, member.weight, input.weight_dead_band_percent);
    member.weight = unchanged ? before->second : QuantiseWeight(member.weight);
    index_now.emplace(IdentityOf(member), static_cast<MemberIndex>(frame.map.members.size()));
    frame.seating.push_back(Seating{.weight = wanted->quota_permille});
    frame.map.members.push_back(std::move(member));
  }
  if (input.previous == nullptr) return;
  for (const Member& member : input.previous->members) {
    const auto found = index_now.find(IdentityOf(member));
    frame.renamed.push_back(found == index_now.end() ? kNoOwner : found->second);
  }
}

// Share of each member by state. `drain_counts`: with nobody else left, Draining members stay.
bool AssignShares(PlanFrame& frame, const std::vector<std::uint64_t>& permille, bool drain_counts) {
  std::uint64_t heaviest = 0;
  for (const Member& member : frame.map.members) heaviest = std::max(heaviest, member.weight);
  // Members are at most 2^10, so that scaled weights sum to less than 2^kScaledBits.
  const int excess_bits = static_cast<int>(std::bit_width(heaviest)) - (kScaledBits - 10);
  const unsigned shift = excess_bits > 0 ? static_cast<unsigned>(excess_bits) : 0;
  bool any = false;
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    const Member& member = frame.map.members[i];
    Seating& seating = frame.seating[i];
    seating.weight = 0;
    seating.held = member.state == MemberState::kSuspect;
    const bool owns =
        member.state == MemberState::kDraining ? drain_counts : member.state != MemberState::kLost;
    if (!owns || member.weight == 0) continue;
    const std::uint64_t share =
        member.state == MemberState::kJoining ? permille[i] : std::uint64_t{kMaxPermille};
    seating.weight = std::max<std::uint64_t>(1, member.weight >> shift) * share;
    any = any || seating.weight > 0;
  }
  return any;
}

void ShareSlots(PlanFrame& frame) {
  std::vector<std::uint64_t> permille;
  for (const Seating& seating : frame.seating) permille.push_back(seating.weight);
  if (AssignShares(frame, permille, false)) return;
  // Nobody has a share yet: a pool whose members all join takes them in full at once.
  permille.assign(permille.size(), kMaxPermille);
  if (AssignShares(frame, permille, false)) return;
  AssignShares(frame, permille, true);
}

void AssignDomains(PlanFrame& frame) {
  std::map<std::string_view, std::uint32_t> zones;
  std::set<std::string_view> owning_zones;
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    const std::string& zone = frame.map.members[i].zone;
    zones.emplace(zone, static_cast<std::uint32_t>(zones.size()));
    if (frame.seating[i].weight > 0) owning_zones.insert(zone);
  }
  frame.zones_spread = owning_zones.size() >= 2;
  std::uint32_t owning_members = 0;
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    Seating& seating = frame.seating[i];
    owning_members += seating.weight > 0 ? 1 : 0;
    seating.domain =
        frame.zones_spread ? zones.at(frame.map.members[i].zone) : static_cast<std::uint32_t>(i);
  }
  frame.domain_count =
      frame.zones_spread ? static_cast<std::uint32_t>(owning_zones.size()) : owning_members;
}

bool Contains(std::span<const MemberIndex> owners, MemberIndex member) {
  return std::find(owners.begin(), owners.end(), member) != owners.end();
}

// The owners a slot had, by today's index and in today's number of columns.
struct FormerOwners {
  std::vector<MemberIndex> bytes;
  std::vector<MemberIndex> all;
};

void ReadFormerOwners(const PlanInput& input, const PlanFrame& frame, SlotIndex slot,
                      FormerOwners& former) {
  former.bytes.clear();
  former.all.clear();
  if (input.previous == nullptr) return;
  const std::span<const MemberIndex> owners = input.previous->Owners(slot);
  for (std::size_t column = 0; column < owners.size(); ++column) {
    if (owners[column] == kNoOwner) continue;
    const MemberIndex now = frame.renamed[owners[column]];
    if (column < input.previous->replicas) former.bytes.push_back(now);
    former.all.push_back(now);
  }
}

// Who gave up what `column` takes over: the next former owner that is no longer one.
MemberIndex NextLeaver(std::span<const MemberIndex> former, std::span<const MemberIndex> now,
                       std::size_t& position) {
  while (position < former.size()) {
    const MemberIndex candidate = former[position++];
    if (candidate == kNoOwner || !Contains(now, candidate)) return candidate;
  }
  return kNoOwner;
}

void ListSlotMoves(const PlanInput& input, SlotIndex slot, const FormerOwners& former,
                   PlanResult& result) {
  const std::span<const MemberIndex> owners = result.map.Owners(slot);
  const std::span<const MemberIndex> byte_owners = result.map.ByteOwners(slot);
  std::size_t byte_position = 0;
  std::size_t position = 0;
  for (std::uint32_t column = 0; column < owners.size(); ++column) {
    const MemberIndex to = owners[column];
    if (to == kNoOwner) continue;
    const bool moves_bytes = column < result.map.replicas;
    if (Contains(moves_bytes ? former.bytes : former.all, to)) continue;
    SlotMove move{.slot = slot, .column = column, .to = to};
    if (moves_bytes) {
      move.from = NextLeaver(former.bytes, byte_owners, byte_position);
      move.bytes = input.slot_bytes.empty() ? 0 : input.slot_bytes[slot];
      ++result.byte_moves;
      result.moved_bytes += move.bytes;
    } else {
      move.from = NextLeaver(former.all, owners, position);
    }
    result.moves.push_back(move);
  }
}

bool Satisfied(const PlanFrame& frame, std::span<const MemberIndex> byte_owners) {
  for (std::size_t i = 0; i < byte_owners.size(); ++i) {
    if (byte_owners[i] == kNoOwner) return false;
    for (std::size_t before = 0; before < i; ++before) {
      if (frame.seating[byte_owners[i]].domain == frame.seating[byte_owners[before]].domain) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

std::uint64_t QuantiseWeight(std::uint64_t usable_bytes) {
  constexpr int kSignificantBits = 7;
  const int drop = static_cast<int>(std::bit_width(usable_bytes)) - kSignificantBits;
  if (drop <= 0) return usable_bytes;
  const std::uint64_t step = std::uint64_t{1} << static_cast<unsigned>(drop);
  return (usable_bytes + step / 2) / step * step;
}

Result<PlanFrame> PreparePlan(const PlanInput& input) {
  KVF_RETURN_IF_ERROR(CheckShape(input));
  KVF_RETURN_IF_ERROR(CheckMembers(input));
  PlanFrame frame;
  frame.map.pool_uid = input.pool_uid;
  frame.map.slot_count = input.slot_count;
  frame.map.replicas = input.replicas;
  frame.map.owners_per_slot = OwnersPerSlot(input.replicas);
  if (input.previous != nullptr) {
    frame.map.term = input.previous->term;
    frame.map.epoch = input.previous->epoch;
  }
  frame.seed = Hash64(AsBytes(input.pool_uid));
  AddMembers(input, frame);
  ShareSlots(frame);
  AssignDomains(frame);
  return frame;
}

void DescribePlan(const PlanInput& input, const PlanFrame& frame, PlanResult& result) {
  FormerOwners former;
  for (SlotIndex slot = 0; slot < result.map.slot_count; ++slot) {
    ReadFormerOwners(input, frame, slot, former);
    ListSlotMoves(input, slot, former, result);
    if (!Satisfied(frame, result.map.ByteOwners(slot))) result.unsatisfied.push_back(slot);
  }
  result.changed = input.previous == nullptr || input.previous->members != result.map.members ||
                   input.previous->table != result.map.table ||
                   input.previous->replicas != result.map.replicas;
}

}  // namespace kvfabric
