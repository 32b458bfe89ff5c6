#include "operator/controllers/pool_plan.h"

#include <utility>

#include "placement/consistent_hash.h"
#include "placement/range.h"
#include "placement/sticky_quota.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kDeadBandPercent = 10;

const Planner& PlannerOf(const PoolSpec& spec) {
  static const StickyQuota sticky;
  static const ConsistentHash hash{ConsistentHash::Options{}};
  static const Range range;
  if (spec.sharding.algorithm == "ConsistentHash") return hash;
  if (spec.sharding.algorithm == "Range") return range;
  return sticky;
}

// Agents that took over a node's name take its place: to the planner they are the same member.
ShardMap WithNewIdentities(const ShardMap& stored, const std::vector<TrackedMember>& members) {
  ShardMap out = stored;
  for (const TrackedMember& tracked : members) {
    for (Member& member : out.members) {
      if (member.node_name == tracked.plan.member.node_name) {
        member.agent_uid = tracked.plan.member.agent_uid;
      }
    }
  }
  return out;
}

MemberState AtRest(MemberState state) {
  const bool leaves = state == MemberState::kDraining || state == MemberState::kLost;
  return leaves ? state : MemberState::kActive;
}

}  // namespace

const Member* FindNode(const ShardMap& map, const std::string& node) {
  for (const Member& member : map.members) {
    if (member.node_name == node) return &member;
  }
  return nullptr;
}

bool WeightMoved(std::uint64_t stored, std::uint64_t now) {
  const std::uint64_t difference = stored > now ? stored - now : now - stored;
  return difference > stored / 100 * kDeadBandPercent + stored % 100 * kDeadBandPercent / 100;
}

Result<PlanResult> PlanPool(const PoolPlanInput& input) {
  const PoolSpec& spec = input.pool->spec;
  PlanInput plan;
  plan.pool_uid = input.pool->meta.uid;
  std::optional<ShardMap> previous;
  if (input.stored != nullptr) {
    previous = WithNewIdentities(*input.stored, *input.members);
    plan.previous = &*previous;
  }
  for (const TrackedMember& tracked : *input.members) {
    PlanMember member = tracked.plan;
    if (input.at_rest) member.member.state = AtRest(member.member.state);
    if (input.hold_weights && input.stored != nullptr) {
      const Member* before = FindNode(*input.stored, member.member.node_name);
      if (before != nullptr) member.member.weight = before->weight;
    }
    plan.members.push_back(std::move(member));
  }
  plan.slot_count = spec.sharding.slots;
  plan.replicas = spec.sharding.replicas;
  const std::vector<std::uint64_t> slot_bytes(spec.sharding.slots, input.bytes_per_slot);
  if (input.bytes_per_slot != 0) plan.slot_bytes = slot_bytes;
  plan.balance_slots_max = input.balance_slots_max;
  return PlannerOf(spec).Plan(plan);
}

}  // namespace kvfabric
