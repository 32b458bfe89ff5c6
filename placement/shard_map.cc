#include "placement/shard_map.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace kvfabric {
namespace {

constexpr std::array<std::string_view, kMemberStateCount> kStateNames = {
    "Joining", "Recovering", "Active", "Suspect", "Draining", "Lost"};

Status MapFault(std::string cause) { return InvalidArgument("shard map: validate: " + cause); }

Status TableFault(std::size_t slot, const std::string& cause) {
  return MapFault("slot " + std::to_string(slot) + " " + cause);
}

Status ValidateShape(const ShardMap& map) {
  if (map.replicas < 1 || map.replicas > kMaxReplicas) {
    return MapFault("replicas " + std::to_string(map.replicas) + " out of range (1..3)");
  }
  if (map.owners_per_slot != OwnersPerSlot(map.replicas)) {
    return MapFault("owners per slot " + std::to_string(map.owners_per_slot) + " with " +
                    std::to_string(map.replicas) + " replicas (need " +
                    std::to_string(OwnersPerSlot(map.replicas)) + ")");
  }
  return Status::Ok();
}

Status ValidateMembers(const ShardMap& map) {
  if (map.members.size() > kMaxMembers) {
    return MapFault(std::to_string(map.members.size()) + " members (at most 1024)");
  }
  std::set<std::pair<std::string_view, std::string_view>> identities;
  for (std::size_t i = 0; i < map.members.size(); ++i) {
    const Member& member = map.members[i];
    if (member.node_name.empty()) {
      return MapFault("member " + std::to_string(i) + " has no node name");
    }
    if (static_cast<std::uint8_t>(member.state) >= kMemberStateCount) {
      return MapFault("member " + member.node_name + " has no known state");
    }
    if (!identities.emplace(member.node_name, member.agent_uid).second) {
      return MapFault("member " + member.node_name + " with agent " + member.agent_uid +
                      " is listed twice");
    }
  }
  return Status::Ok();
}

}  // namespace

std::string_view MemberStateName(MemberState state) {
  const auto index = static_cast<std::uint8_t>(state);
  return index < kMemberStateCount ? kStateNames[index] : "Unknown";
}

std::optional<MemberState> ParseMemberState(std::string_view name) {
  for (std::uint8_t i = 0; i < kMemberStateCount; ++i) {
    if (kStateNames[i] == name) return static_cast<MemberState>(i);
  }
  return std::nullopt;
}

bool ShardMap::Owns(MemberIndex member, SlotIndex slot) const {
  const std::span<const MemberIndex> owners = Owners(slot);
  return std::find(owners.begin(), owners.end(), member) != owners.end();
}

std::optional<MemberIndex> ShardMap::FindMember(std::string_view node_name,
                                                std::string_view agent_uid) const {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].node_name == node_name && members[i].agent_uid == agent_uid) {
      return static_cast<MemberIndex>(i);
    }
  }
  return std::nullopt;
}

Status ValidateTable(std::span<const MemberIndex> table, const TableShape& shape) {
  if (!IsValidSlotCount(shape.slot_count)) {
    return MapFault("slot count " + std::to_string(shape.slot_count) +
                    " is not one of 16384, 32768, 65536, 131072");
  }
  const std::size_t columns = shape.owners_per_slot;
  if (table.size() != shape.slot_count * columns) {
    return MapFault("table has " + std::to_string(table.size()) + " entries (need " +
                    std::to_string(shape.slot_count * columns) + ")");
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i] == kNoOwner) continue;
    const std::size_t slot = i / columns;
    const std::size_t first = slot * columns;
    if (table[i] >= shape.member_count) {
      return TableFault(slot, "names member " + std::to_string(table[i]) + " of " +
                                  std::to_string(shape.member_count));
    }
    if (i > first && table[i - 1] == kNoOwner) {
      return TableFault(slot, "has an owner after an empty column");
    }
    for (std::size_t before = first; before < i; ++before) {
      if (table[before] == table[i]) {
        return TableFault(slot, "lists member " + std::to_string(table[i]) + " twice");
      }
    }
  }
  return Status::Ok();
}

Status ShardMap::Validate() const {
  KVF_RETURN_IF_ERROR(ValidateShape(*this));
  KVF_RETURN_IF_ERROR(ValidateMembers(*this));
  return ValidateTable(table, shape());
}

}  // namespace kvfabric
