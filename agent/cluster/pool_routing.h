#pragma once

// PoolRouting: one pool's shard map as this node uses it, with the map before it for the hand-over
// (a new owner without an entry asks the previous one for 10 s after an epoch).
// Immutable, shared; RoutingCell publishes the current one. Any thread.

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/cluster/node_names.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "placement/shard_map.h"

namespace kvfabric {

class PoolRouting;
using SharedRouting = std::shared_ptr<const PoolRouting>;

class PoolRouting {
 public:
  struct Self {
    std::string node_name;
    std::string agent_uid;
    NodeIndex node = kNoNode;
  };

  // `previous` may be null; it is not kept.
  static SharedRouting Make(SharedShardMap map, const SharedRouting& previous, const Self& self,
                            NodeNames& names, Clock::TimePoint now);

  const ShardMap& map() const { return *map_; }
  SharedShardMap shared_map() const { return map_; }
  std::uint64_t epoch() const { return map_->epoch; }
  Clock::TimePoint adopted_at() const { return adopted_at_; }
  NodeIndex self() const { return self_; }
  MemberIndex self_member() const { return self_member_; }  // kNoOwner when not a member
  const std::string& self_zone() const { return self_zone_; }

  // Owners of a slot as node numbers, in order, without the empty columns.
  std::vector<NodeIndex> OwnersOf(SlotIndex slot) const;
  bool Owns(NodeIndex node, SlotIndex slot) const;
  // The member with that node name; kNoOwner when there is none (a name is one member at a time).
  MemberIndex MemberOf(NodeIndex node) const;
  NodeIndex NodeOf(MemberIndex member) const { return nodes_[member]; }
  const Member* FindMember(NodeIndex node) const;
  // Zones unknown on either side count as the same.
  bool SameZone(NodeIndex a, NodeIndex b) const;

  // Owners before, of a slot this node gained within kHandover: whom to ask for what it cannot know
  // yet. Empty otherwise.
  static constexpr std::chrono::seconds kHandover{10};
  std::span<const NodeIndex> PreviousOwners(SlotIndex slot, Clock::TimePoint now) const;
  // Every owner of any slot, with the slots that it did not own under `before` (null: all).
  std::map<NodeIndex, std::vector<SlotIndex>> OwnersAndGains(const PoolRouting* before) const;
  // Those of one node.
  std::vector<SlotIndex> GainedSlots(NodeIndex node, const PoolRouting* before) const;
  std::vector<SlotIndex> SlotsOf(NodeIndex node) const;
  // Bit per slot: owned by this node.
  std::vector<bool> OwnedBits() const;
  // Nodes that this map lists as Lost or not at all, and the previous one as present.
  std::vector<NodeIndex> LostSince(const PoolRouting& before) const;

 private:
  PoolRouting() = default;
  struct Handover {
    std::array<NodeIndex, kMaxReplicas> owners{};
    std::uint8_t count = 0;
    Clock::TimePoint until{};
  };
  bool MemberOwns(MemberIndex member, SlotIndex slot) const;
  void NoteHandovers(const PoolRouting& previous);

  SharedShardMap map_;
  Clock::TimePoint adopted_at_{};
  NodeIndex self_ = kNoNode;
  MemberIndex self_member_ = kNoOwner;
  std::string self_zone_;
  std::vector<NodeIndex> nodes_;  // per member
  std::unordered_map<SlotIndex, Handover> handovers_;
  std::unordered_map<NodeIndex, MemberIndex> members_;
};

// The current routing of one pool; null before the first map.
class RoutingCell {
 public:
  SharedRouting Get() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return routing_;
  }
  void Set(SharedRouting routing) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    routing_.swap(routing);  // the old one is freed outside, by the parameter
  }

 private:
  mutable Mutex mu_;
  SharedRouting routing_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
