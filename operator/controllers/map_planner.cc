#include "operator/controllers/map_planner.h"

#include <algorithm>
#include <utility>

#include "operator/controllers/pool_plan.h"

namespace kvfabric {
namespace {

// States between which a member keeps its slots and nothing is planned.
bool Owns(MemberState state) {
  return state == MemberState::kActive || state == MemberState::kRecovering ||
         state == MemberState::kSuspect;
}

// Why `now` needs a new map where `stored` is in it; "" = it does not.
std::string CauseOf(const Member& stored, const Member& now, bool may_balance) {
  const std::string node = "node " + now.node_name;
  if (Owns(stored.state) != Owns(now.state) || (!Owns(now.state) && stored.state != now.state)) {
    return node + " is " + std::string(MemberStateName(now.state));
  }
  // A passing silence writes nothing; a map that recorded one is set right.
  if (stored.state != now.state && now.state == MemberState::kActive) return node + " is back";
  if (stored.agent_uid != now.agent_uid) return node + " has a new agent";
  if (stored.address != now.address || stored.grpc_port != now.grpc_port ||
      stored.bulk_port != now.bulk_port) {
    return node + " has a new address";
  }
  if (stored.zone != now.zone) return node + " is in another failure domain";
  if (may_balance && WeightMoved(stored.weight, now.weight)) return node + " has another capacity";
  return "";
}

void FindLosses(const ShardMap& stored, const ShardMap& next, MapChange* change) {
  std::vector<bool> lost(stored.members.size(), false);
  for (std::size_t i = 0; i < stored.members.size(); ++i) {
    const Member& before = stored.members[i];
    if (before.state == MemberState::kLost || before.state == MemberState::kDraining) continue;
    const Member* after = FindNode(next, before.node_name);
    if (after != nullptr && after->state != MemberState::kLost) continue;
    lost[i] = true;
    change->newly_lost.push_back(before.node_name);
  }
  if (change->newly_lost.empty()) return;
  for (SlotIndex slot = 0; slot < stored.slot_count; ++slot) {
    const auto owners = stored.ByteOwners(slot);
    change->lost_slots += std::any_of(owners.begin(), owners.end(), [&](MemberIndex owner) {
      return owner != kNoOwner && lost[owner];
    });
  }
}

}  // namespace

bool MapPlanner::SharesMoved(const std::vector<TrackedMember>& members) const {
  return std::any_of(members.begin(), members.end(), [&](const TrackedMember& tracked) {
    if (tracked.plan.member.state != MemberState::kJoining) return false;
    const auto it = shares_.find(tracked.plan.member.node_name);
    return it == shares_.end() || it->second != tracked.plan.quota_permille;
  });
}

std::string MapPlanner::Cause(const Input& input) {
  const PoolSpec& spec = input.pool->spec;
  if (input.stored == nullptr) return "first map";
  const ShardMap& stored = *input.stored;
  if (!spec.paused) {
    if (stored.replicas != spec.sharding.replicas) return "replicas changed";
    std::size_t known = 0;
    for (const TrackedMember& tracked : *input.members) {
      const Member& now = tracked.plan.member;
      const Member* before = FindNode(stored, now.node_name);
      if (before == nullptr) return "node " + now.node_name + " joins";
      ++known;
      const std::string cause = CauseOf(*before, now, input.may_balance);
      if (!cause.empty()) return cause;
    }
    if (known != stored.members.size()) return "a node has left";
    const bool may_balance = input.may_balance && (!last_change_.has_value() ||
                                                   input.now - *last_change_ >= options_.pace);
    if (may_balance && SharesMoved(*input.members)) return "joining nodes get a larger share";
    if (may_balance && (unbalanced_ || input.work_left)) return "slots are still to move";
  }
  if (input.highest_epoch > stored.epoch) return "an agent knows a higher epoch";
  return "";
}

Result<std::optional<MapChange>> MapPlanner::Next(const Input& input) {
  const std::string cause = Cause(input);
  if (cause.empty()) return std::optional<MapChange>();
  const PoolSpec& spec = input.pool->spec;
  MapChange change;
  change.reason = cause;
  std::uint64_t epoch = input.highest_epoch;
  if (spec.paused && input.stored != nullptr) {
    change.map = *input.stored;
    change.remaining = remaining_;
    epoch = std::max(epoch, input.stored->epoch);
  } else {
    PoolPlanInput wanted;
    wanted.pool = input.pool;
    wanted.stored = input.stored;
    wanted.members = input.members;
    wanted.bytes_per_slot = input.bytes_per_slot;
    if (input.stored != nullptr) {
      epoch = std::max(epoch, input.stored->epoch);
      wanted.hold_weights = !input.may_balance;
      if (!input.may_balance) wanted.balance_slots_max = 0;
    }
    KVF_ASSIGN_OR_RETURN(PlanResult plan, PlanPool(wanted));
    Remember(input, plan);
    const bool same = input.stored != nullptr && plan.map.members == input.stored->members &&
                      plan.map.table == input.stored->table;
    if (same && input.highest_epoch <= input.stored->epoch) return std::optional<MapChange>();
    if (input.stored != nullptr) FindLosses(*input.stored, plan.map, &change);
    change.map = std::move(plan.map);
    change.moved = input.stored == nullptr ? 0 : plan.byte_moves;
    change.moved_bytes = plan.moved_bytes;
    change.remaining = plan.misplaced_remaining;
  }
  last_change_ = input.now;
  // Until a look at the stored map finds nothing to do: the write of this one may yet fail.
  unbalanced_ = true;
  change.map.term = input.term;
  change.map.epoch = epoch + 1;
  return std::optional<MapChange>(std::move(change));
}

void MapPlanner::Remember(const Input& input, const PlanResult& plan) {
  shares_.clear();
  for (const TrackedMember& tracked : *input.members) {
    if (tracked.plan.member.state == MemberState::kJoining) {
      shares_[tracked.plan.member.node_name] = tracked.plan.quota_permille;
    }
  }
  remaining_ = plan.misplaced_remaining;
  unbalanced_ = remaining_ > 0;
}

}  // namespace kvfabric
