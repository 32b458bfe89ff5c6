#pragma once

// ShardMap: which nodes own each slot of a pool. Made by a Planner, stored and sent by the
// operator, read by every agent.
//
// A value; immutable once shared (std::shared_ptr<const ShardMap>), so any thread may read it.
// Invariants (Validate() checks them; the decoders run it): slot_count is valid; replicas 1..3;
// owners_per_slot = max(2, replicas); at most 1024 members, each (node_name, agent_uid) once;
// table.size() = slot_count x owners_per_slot, slot-major; an owner is a member index or kNoOwner
// (fewer members than columns); no member twice in one slot; no owner after a kNoOwner column.
// The first `replicas` columns keep bytes and the directory, the others the directory only.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "placement/slot.h"

namespace kvfabric {

inline constexpr std::size_t kMaxMembers = 1024;
inline constexpr std::uint32_t kMaxReplicas = 3;

// Position in ShardMap::members. Valid within one map only: name members by identity across maps.
using MemberIndex = std::uint16_t;
inline constexpr MemberIndex kNoOwner = 0xFFFF;

enum class MemberState : std::uint8_t {
  kJoining = 0,     // new: takes a ramping share of its quota
  kRecovering = 1,  // restarted: keeps its slots, cannot serve them yet
  kActive = 2,
  kSuspect = 3,   // missed heartbeats: keeps its slots, gets none
  kDraining = 4,  // leaves: its slots go elsewhere, what it holds can still be fetched
  kLost = 5,      // owns nothing
};
inline constexpr std::uint8_t kMemberStateCount = 6;

std::string_view MemberStateName(MemberState state);
std::optional<MemberState> ParseMemberState(std::string_view name);

struct Member {
  std::string node_name;
  std::string agent_uid;
  std::string address;  // host or IP, without a port
  std::uint16_t grpc_port = 0;
  std::uint16_t bulk_port = 0;
  std::string zone;          // failure domain; empty = not known
  std::uint64_t weight = 0;  // usable bytes, quantised by the planner
  MemberState state = MemberState::kActive;

  bool operator==(const Member&) const = default;
  // An agent is its node name and the UID in its state directory.
  bool SameIdentity(const Member& other) const {
    return node_name == other.node_name && agent_uid == other.agent_uid;
  }
};

// Directory columns a slot has: bytes need `replicas`, knowledge at least two.
constexpr std::uint32_t OwnersPerSlot(std::uint32_t replicas) {
  return replicas < 2 ? 2 : replicas;
}

struct TableShape {
  std::uint32_t slot_count = kRedisSlots;
  std::uint32_t owners_per_slot = 2;
  std::size_t member_count = 0;
};
// The invariants of a table alone; InvalidArgument names slot and fault.
Status ValidateTable(std::span<const MemberIndex> table, const TableShape& shape);

struct ShardMap {
  std::string pool_uid;
  std::uint64_t term = 0;   // of the leader that sends it
  std::uint64_t epoch = 0;  // version of the map; 0 = never published
  std::uint32_t slot_count = kRedisSlots;
  std::uint32_t replicas = 1;
  std::uint32_t owners_per_slot = 2;
  std::vector<Member> members;
  std::vector<MemberIndex> table;

  bool operator==(const ShardMap&) const = default;

  // All columns of `slot`, kNoOwner included. `slot` < slot_count.
  std::span<const MemberIndex> Owners(SlotIndex slot) const {
    return {table.data() + std::size_t{slot} * owners_per_slot, owners_per_slot};
  }
  // The columns that keep bytes.
  std::span<const MemberIndex> ByteOwners(SlotIndex slot) const {
    return Owners(slot).first(replicas);
  }
  bool Owns(MemberIndex member, SlotIndex slot) const;
  std::optional<MemberIndex> FindMember(std::string_view node_name,
                                        std::string_view agent_uid) const;

  TableShape shape() const { return {slot_count, owners_per_slot, members.size()}; }
  // OK, or InvalidArgument naming the first broken invariant and where.
  Status Validate() const;
};

using SharedShardMap = std::shared_ptr<const ShardMap>;

}  // namespace kvfabric
