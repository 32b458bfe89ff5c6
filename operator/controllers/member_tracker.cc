#include "operator/controllers/member_tracker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "operator/controllers/leave_signal.h"
#include "placement/rebalance_rules.h"

namespace kvfabric {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

const NodeFacts* FindNode(const World& world, const std::string& name) {
  const auto it = world.nodes->find({"", name});
  return it == world.nodes->end() ? nullptr : it->second.get();
}

std::string ZoneOf(const PoolSpec& spec, const NodeFacts* node, const std::string& otherwise) {
  if (node == nullptr) return otherwise;
  const auto it = node->labels.find(spec.sharding.failure_domain_key);
  return it == node->labels.end() ? std::string() : it->second;
}

std::uint64_t WeightOf(const Pool& pool, const NodeAgent& agent, std::uint64_t otherwise) {
  if (!pool.spec.sharding.weighted_by_capacity) return 1;
  const AgentPoolReport* report =
      agent.report.has_value() ? agent.report->FindPool(pool.meta.uid) : nullptr;
  return report == nullptr || report->capacity_bytes == 0 ? otherwise : report->capacity_bytes;
}

std::uint64_t OwnedSlots(const ShardMap& map, MemberIndex member) {
  std::uint64_t count = 0;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    const auto owners = map.ByteOwners(slot);
    count += std::find(owners.begin(), owners.end(), member) != owners.end() ? 1U : 0U;
  }
  return count;
}

// How far a joining member of a stored map has come, so that a new leader goes on from there.
milliseconds ElapsedOf(const ShardMap& map, const std::string& node, milliseconds warmup) {
  std::size_t holders = 0;
  MemberIndex index = kNoOwner;
  for (std::size_t i = 0; i < map.members.size(); ++i) {
    const MemberState state = map.members[i].state;
    holders += state != MemberState::kLost && state != MemberState::kDraining ? 1U : 0U;
    if (map.members[i].node_name == node) index = static_cast<MemberIndex>(i);
  }
  if (index == kNoOwner || holders == 0) return milliseconds(0);
  const std::uint64_t fair =
      std::max<std::uint64_t>(std::uint64_t{map.slot_count} * map.replicas / holders, 1);
  const std::uint64_t permille =
      std::min<std::uint64_t>(OwnedSlots(map, index) * 1000 / fair, 1000);
  return milliseconds(warmup.count() * static_cast<std::int64_t>(permille) / 1000);
}

}  // namespace

milliseconds MemberTracker::SilenceOf(const std::string& node, const World& world) const {
  const auto leadership = duration_cast<milliseconds>(world.now - world.leading_since);
  const NodeAgent* agent = world.registry->Find(node);
  if (agent == nullptr || !agent->heard) return leadership;
  return std::min(leadership, duration_cast<milliseconds>(world.now - agent->last_heard));
}

void MemberTracker::LookForMassFailure(const Pool& pool, const ShardMap& stored,
                                       const World& world) {
  mass_failure_.clear();
  const milliseconds grace = pool.spec.rebalance.node_loss_grace;
  // Before that nobody is judged at all.
  if (world.now - world.leading_since < grace) return;
  std::vector<LossCandidate> candidates;
  for (const Member& member : stored.members) {
    if (member.state == MemberState::kDraining) continue;
    const milliseconds silence = SilenceOf(member.node_name, world);
    candidates.push_back({member.node_name, member.zone, silence >= options_.suspect_after,
                          world.now - silence, member.state == MemberState::kLost});
  }
  const auto silent = std::count_if(candidates.begin(), candidates.end(),
                                    [](const LossCandidate& c) { return c.silent; });
  if (silent < 2) return;  // nearly always
  LossBrakeRules rules = options_.brake;
  rules.window = std::min(rules.window, grace);
  mass_failure_ = FindMassFailure(candidates, rules);
  const auto confirmed = pool.meta.annotations.find(kConfirmLossAnnotation);
  std::erase_if(mass_failure_, [&](const std::string& node) {
    // A Node that was deleted is a person's or an autoscaler's word.
    return FindNode(world, node) == nullptr ||
           (confirmed != pool.meta.annotations.end() && LossIsConfirmed(confirmed->second, node));
  });
}

MemberState MemberTracker::NextState(const Pool& pool, const ShardMap& stored, MemberIndex index,
                                     const World& world) {
  const Member& member = stored.members[index];
  const NodeAgent* agent = world.registry->Find(member.node_name);
  const NodeFacts* node = FindNode(world, member.node_name);
  MemberObservation seen;
  seen.state = member.state;
  seen.leadership_age = duration_cast<milliseconds>(world.now - world.leading_since);
  seen.heard = agent != nullptr && agent->heard;
  seen.last_heartbeat_age = SilenceOf(member.node_name, world);
  const LossRules rules{options_.suspect_after, pool.spec.rebalance.node_loss_grace};
  seen.node_gone =
      node == nullptr && seen.leadership_age >= rules.grace && world.node_is_gone(member.node_name);
  const auto join = joins_.find(member.node_name);
  seen.joined = join == joins_.end() || join->second.done;
  MemberState state = NextMemberState(seen, rules);
  const bool fell = state == MemberState::kLost && member.state != MemberState::kLost;
  if (fell && mass_failure_.count(member.node_name) != 0) state = MemberState::kSuspect;
  const bool current = seen.heard && seen.last_heartbeat_age < rules.suspect_after;
  if (current || state == MemberState::kSuspect || state == MemberState::kLost) {
    flaps_.See(member.node_name, !current, world.now, world.now_unix_us);
  }
  if (member.state == MemberState::kLost && flaps_.Holds(member.node_name, world.now)) {
    return MemberState::kLost;
  }
  if (current && agent->report.has_value()) {
    const bool recovering = agent->report->recovering;
    if (recovering && state == MemberState::kActive) state = MemberState::kRecovering;
    if (!recovering && state == MemberState::kRecovering) state = MemberState::kActive;
  }
  if (state == MemberState::kLost || node == nullptr) return state;
  if (!LeaveSignal(pool.spec, *node).empty()) return MemberState::kDraining;
  // Taken back: it gets its share again step by step.
  return state == MemberState::kDraining && current ? MemberState::kJoining : state;
}

void MemberTracker::Ramp(const PoolSpec& spec, const ShardMap* stored, Member* member,
                         PlanMember* plan, Clock::TimePoint now) {
  plan->quota_permille = 1000;
  if (member->state != MemberState::kJoining) {
    if (member->state != MemberState::kSuspect) joins_.erase(member->node_name);
    return;
  }
  const milliseconds warmup = spec.rebalance.join_warmup;
  auto [it, fresh] = joins_.try_emplace(member->node_name);
  Join& join = it->second;
  if (fresh || hold_joins_) {
    const milliseconds elapsed =
        stored == nullptr ? milliseconds(0) : ElapsedOf(*stored, member->node_name, warmup);
    join.began = now - elapsed;
    if (hold_joins_ && elapsed.count() == 0) {
      plan->quota_permille = 0;
      return;
    }
  }
  plan->quota_permille = JoinSharePermille(duration_cast<milliseconds>(now - join.began),
                                           {warmup, spec.rebalance.join_ramp_percent});
  join.done = plan->quota_permille >= 1000;
  if (join.done) {
    member->state = MemberState::kActive;
    joins_.erase(it);
  }
}

std::optional<TrackedMember> MemberTracker::Follow(const Pool& pool, const ShardMap& stored,
                                                   MemberIndex index, const World& world) {
  TrackedMember out;
  out.from_map = true;
  Member& member = out.plan.member;
  member = stored.members[index];
  const NodeAgent* agent = world.registry->Find(member.node_name);
  const NodeFacts* node = FindNode(world, member.node_name);
  member.state = NextState(pool, stored, index, world);
  if (agent != nullptr) {
    if (agent->connected) {
      // The same node under a new address, or with an agent that lost its state: its place stays.
      member.agent_uid = agent->agent_uid;
      member.address = agent->target.host;
      member.grpc_port = agent->target.grpc_port;
      member.bulk_port = agent->bulk_port;
    }
    member.weight = WeightOf(pool, *agent, member.weight);
    const bool fresh = world.now - agent->last_heard < options_.suspect_after;
    out.serving = agent->connected && fresh && agent->report.has_value() && agent->report->ready;
    out.drained = agent->report.has_value() && agent->report->drain.done;
  }
  member.zone = ZoneOf(pool.spec, node, member.zone);
  Ramp(pool.spec, &stored, &member, &out.plan, world.now);
  out.held_back = member.state == MemberState::kLost && out.serving;
  // Who owns nothing leaves the list when there is nobody left to come back.
  const bool pod_is_there =
      agent != nullptr && !agent->pod.name.empty() && world.registry->PodExists(agent->pod);
  if (member.state == MemberState::kLost && (node == nullptr || !pod_is_there)) return std::nullopt;
  if (member.state == MemberState::kDraining && !out.serving) {
    const bool silent = agent == nullptr ||
                        (agent->heard && world.now - agent->last_heard >= options_.suspect_after);
    if (silent && (out.drained || node == nullptr)) return std::nullopt;
  }
  return out;
}

std::optional<TrackedMember> MemberTracker::Admit(const Pool& pool, const NodeAgent& agent,
                                                  const World& world) {
  const NodeFacts* node = FindNode(world, agent.node_name);
  if (node == nullptr || !MayJoin(pool.spec, *node)) return std::nullopt;
  if (!agent.connected || !agent.report.has_value()) return std::nullopt;
  if (world.now - agent.last_heard >= options_.suspect_after) return std::nullopt;
  flaps_.See(agent.node_name, false, world.now, world.now_unix_us);
  if (flaps_.Holds(agent.node_name, world.now)) return std::nullopt;
  if (!agent.report->ready || agent.report->recovering) return std::nullopt;
  const AgentPoolReport* report = agent.report->FindPool(pool.meta.uid);
  if (report == nullptr || report->capacity_bytes == 0) return std::nullopt;
  TrackedMember out;
  out.serving = true;
  Member& member = out.plan.member;
  member.node_name = agent.node_name;
  member.agent_uid = agent.agent_uid;
  member.address = agent.target.host;
  member.grpc_port = agent.target.grpc_port;
  member.bulk_port = agent.bulk_port;
  member.zone = ZoneOf(pool.spec, node, "");
  member.weight = WeightOf(pool, agent, report->capacity_bytes);
  member.state = MemberState::kJoining;
  return out;
}

std::vector<TrackedMember> MemberTracker::Observe(const Pool& pool, const ShardMap* stored,
                                                  const World& world, bool hold_joins) {
  std::vector<TrackedMember> out;
  std::set<std::string> named;
  flaps_.Retain([&](const std::string& node) { return FindNode(world, node) != nullptr; });
  mass_failure_.clear();
  if (stored != nullptr) {
    LookForMassFailure(pool, *stored, world);
    hold_joins_ = hold_joins || !mass_failure_.empty();
    for (std::size_t i = 0; i < stored->members.size(); ++i) {
      const auto index = static_cast<MemberIndex>(i);
      if (auto member = Follow(pool, *stored, index, world)) {
        if (named.insert(member->plan.member.node_name).second) out.push_back(std::move(*member));
      } else {
        joins_.erase(stored->members[i].node_name);
        named.insert(stored->members[i].node_name);  // not back in the same breath
      }
    }
  }
  for (const auto& [name, agent] : world.registry->agents()) {
    if (named.count(name) != 0 || out.size() >= kMaxMembers) continue;
    std::optional<TrackedMember> member = Admit(pool, agent, world);
    if (!member.has_value()) continue;
    if (stored == nullptr) {
      // The members of a first map have nothing to be eased into.
      member->plan.member.state = MemberState::kActive;
    } else {
      Ramp(pool.spec, nullptr, &member->plan.member, &member->plan, world.now);
    }
    out.push_back(std::move(*member));
  }
  return out;
}

std::uint32_t MemberTracker::CountDesired(const PoolSpec& spec, const World& world) {
  std::uint32_t count = 0;
  for (const auto& [name, node] : *world.nodes) {
    if (!MayJoin(spec, *node)) continue;
    count += world.registry->HasPodOn(node->name) ? 1U : 0U;
  }
  return count;
}

bool MemberTracker::MayBegin(const Pool& pool, const std::vector<TrackedMember>& members,
                             const World& world) {
  if (members.size() != candidates_) {
    candidates_ = members.size();
    last_newcomer_ = world.now;
  }
  if (members.empty()) {
    first_candidate_.reset();
    return false;
  }
  if (!first_candidate_.has_value()) first_candidate_ = world.now;
  if (members.size() < pool.spec.placement.min_nodes) return false;
  if (world.now - *first_candidate_ >= options_.first_map_patience) return true;
  return members.size() >= CountDesired(pool.spec, world) &&
         world.now - *last_newcomer_ >= options_.settle;
}

}  // namespace kvfabric
