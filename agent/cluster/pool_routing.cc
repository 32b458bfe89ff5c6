#include "agent/cluster/pool_routing.h"

#include <algorithm>

namespace kvfabric {

namespace {

std::vector<NodeIndex> InternAll(const ShardMap& map, NodeNames& names) {
  std::vector<NodeIndex> nodes;
  nodes.reserve(map.members.size());
  for (const Member& member : map.members) nodes.push_back(names.Intern(member.node_name));
  return nodes;
}

}  // namespace

SharedRouting PoolRouting::Make(SharedShardMap map, const SharedRouting& previous, const Self& self,
                                NodeNames& names, Clock::TimePoint now) {
  std::shared_ptr<PoolRouting> routing(new PoolRouting);
  routing->map_ = std::move(map);
  routing->adopted_at_ = now;
  routing->self_ = self.node;
  routing->nodes_ = InternAll(*routing->map_, names);
  for (std::size_t i = 0; i < routing->nodes_.size(); ++i) {
    const Member& member = routing->map_->members[i];
    const auto [known, fresh] =
        routing->members_.try_emplace(routing->nodes_[i], static_cast<MemberIndex>(i));
    // Two agents of one name: the one that is not lost counts.
    if (!fresh && member.state != MemberState::kLost) known->second = static_cast<MemberIndex>(i);
  }
  const auto own = routing->map_->FindMember(self.node_name, self.agent_uid);
  routing->self_member_ = own.value_or(kNoOwner);
  if (own) routing->self_zone_ = routing->map_->members[*own].zone;
  if (previous != nullptr) routing->NoteHandovers(*previous);
  return routing;
}

void PoolRouting::NoteHandovers(const PoolRouting& previous) {
  const SlotIndex slots = std::min(map_->slot_count, previous.map_->slot_count);
  for (SlotIndex slot = 0; slot < slots; ++slot) {
    if (!MemberOwns(self_member_, slot)) continue;
    if (previous.MemberOwns(previous.self_member_, slot)) {
      const auto running = previous.handovers_.find(slot);
      if (running != previous.handovers_.end() && adopted_at_ < running->second.until) {
        handovers_.insert(*running);
      }
      continue;
    }
    Handover handover;
    handover.until = adopted_at_ + kHandover;
    for (const MemberIndex member : previous.map_->Owners(slot)) {
      if (member == kNoOwner || handover.count == handover.owners.size()) break;
      handover.owners[handover.count++] = previous.nodes_[member];
    }
    if (handover.count > 0) handovers_.emplace(slot, handover);
  }
}

std::vector<NodeIndex> PoolRouting::OwnersOf(SlotIndex slot) const {
  std::vector<NodeIndex> owners;
  for (const MemberIndex member : map_->Owners(slot)) {
    if (member != kNoOwner) owners.push_back(nodes_[member]);
  }
  return owners;
}

bool PoolRouting::MemberOwns(MemberIndex member, SlotIndex slot) const {
  return member != kNoOwner && map_->Owns(member, slot);
}

bool PoolRouting::Owns(NodeIndex node, SlotIndex slot) const {
  return MemberOwns(node == self_ ? self_member_ : MemberOf(node), slot);
}

MemberIndex PoolRouting::MemberOf(NodeIndex node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? kNoOwner : found->second;
}

const Member* PoolRouting::FindMember(NodeIndex node) const {
  const MemberIndex member = MemberOf(node);
  return member == kNoOwner ? nullptr : &map_->members[member];
}

bool PoolRouting::SameZone(NodeIndex a, NodeIndex b) const {
  const Member* first = FindMember(a);
  const Member* second = FindMember(b);
  if (first == nullptr || second == nullptr || first->zone.empty() || second->zone.empty()) {
    return true;
  }
  return first->zone == second->zone;
}

std::span<const NodeIndex> PoolRouting::PreviousOwners(SlotIndex slot, Clock::TimePoint now) const {
  const auto found = handovers_.find(slot);
  if (found == handovers_.end() || now >= found->second.until) return {};
  return {found->second.owners.data(), found->second.count};
}

std::map<NodeIndex, std::vector<SlotIndex>> PoolRouting::OwnersAndGains(
    const PoolRouting* before) const {
  std::map<NodeIndex, std::vector<SlotIndex>> owners;
  for (SlotIndex slot = 0; slot < map_->slot_count; ++slot) {
    for (const MemberIndex member : map_->Owners(slot)) {
      if (member == kNoOwner) break;
      const NodeIndex node = nodes_[member];
      if (node == kNoNode) continue;
      std::vector<SlotIndex>& gained = owners[node];
      if (before == nullptr || !before->Owns(node, slot)) gained.push_back(slot);
    }
  }
  return owners;
}

std::vector<SlotIndex> PoolRouting::GainedSlots(NodeIndex node, const PoolRouting* before) const {
  std::vector<SlotIndex> gained;
  for (SlotIndex slot = 0; slot < map_->slot_count; ++slot) {
    if (Owns(node, slot) && (before == nullptr || !before->Owns(node, slot)))
      gained.push_back(slot);
  }
  return gained;
}

std::vector<SlotIndex> PoolRouting::SlotsOf(NodeIndex node) const {
  return GainedSlots(node, nullptr);
}

std::vector<bool> PoolRouting::OwnedBits() const {
  std::vector<bool> owned(map_->slot_count, false);
  for (SlotIndex slot = 0; slot < map_->slot_count; ++slot) {
    owned[slot] = MemberOwns(self_member_, slot);
  }
  return owned;
}

std::vector<NodeIndex> PoolRouting::LostSince(const PoolRouting& before) const {
  std::vector<NodeIndex> lost;
  for (std::size_t i = 0; i < before.nodes_.size(); ++i) {
    if (before.map_->members[i].state == MemberState::kLost) continue;
    const Member* now = FindMember(before.nodes_[i]);
    if (now == nullptr || now->state == MemberState::kLost) lost.push_back(before.nodes_[i]);
  }
  return lost;
}

}  // namespace kvfabric
