#include "operator/controllers/proposal.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "common/checksum.h"
#include "operator/controllers/pool_plan.h"
#include "operator/kube/timestamp.h"
#include "placement/rebalance_rules.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kStepSeconds = 1;  // the pace of maps that balance

std::string ShortHash(const std::string& text) {
  std::array<char, 7> out{};
  std::snprintf(out.data(), out.size(), "%06x",
                static_cast<unsigned>(Hash64(AsBytes(text)) & 0xFFFFFFU));
  return out.data();
}

bool Leaves(MemberState state) {
  return state == MemberState::kDraining || state == MemberState::kLost;
}

void Describe(const Member& member, std::string* out) {
  *out += member.node_name + '\n' + member.agent_uid + '\n' + member.zone + '\n' +
          std::to_string(member.weight) + (Leaves(member.state) ? " leaves\n" : "\n");
}

// All that a plan depends on, except bytes: they change all the time and move nothing.
std::string InputsOf(const Proposer::Input& input) {
  const ShardingSpec& sharding = input.pool->spec.sharding;
  std::string out = std::to_string(input.stored->epoch) + ' ' + std::to_string(sharding.replicas) +
                    ' ' + sharding.algorithm + '\n';
  for (const TrackedMember& tracked : *input.members) Describe(tracked.plan.member, &out);
  return out;
}

std::string GoalOf(const Proposer::Input& input, const ShardMap& map) {
  const ShardingSpec& sharding = input.pool->spec.sharding;
  std::string out = std::to_string(sharding.replicas) + ' ' + sharding.algorithm + '\n';
  std::vector<std::string> members(map.members.size());
  for (std::size_t i = 0; i < members.size(); ++i) Describe(map.members[i], &members[i]);
  std::sort(members.begin(), members.end());
  for (const std::string& member : members) out += member;
  return ShortHash(out);
}

std::string MovesOf(const PlanResult& plan) {
  std::string out;
  const auto name = [&](MemberIndex index) {
    return index == kNoOwner ? std::string("-") : plan.map.members[index].node_name;
  };
  for (const SlotMove& move : plan.moves) {
    out += std::to_string(move.slot) + ' ' + std::to_string(move.column) + ' ' + name(move.from) +
           ' ' + name(move.to) + '\n';
  }
  return ShortHash(out);
}

std::string ReasonOf(const Proposer::Input& input) {
  std::vector<std::string> joining;
  for (const TrackedMember& tracked : *input.members) {
    const Member& now = tracked.plan.member;
    if (now.state == MemberState::kJoining) joining.push_back(now.node_name);
  }
  if (joining.size() == 1) return "node " + joining.front() + " joins";
  if (!joining.empty()) {
    return std::to_string(joining.size()) + " nodes join, among them " + joining.front();
  }
  for (const TrackedMember& tracked : *input.members) {
    const Member& now = tracked.plan.member;
    const Member* before = FindNode(*input.stored, now.node_name);
    if (before != nullptr && WeightMoved(before->weight, now.weight)) {
      return "node " + now.node_name + " has another capacity";
    }
  }
  return "slots are unevenly spread";
}

// The busiest node's bytes within its limit, and no faster than the steps that the moves are
// made in.
std::uint64_t EtaSeconds(const Proposer::Input& input, const PlanResult& plan) {
  std::vector<std::uint64_t> out(plan.map.members.size(), 0);
  std::vector<std::uint64_t> in(plan.map.members.size(), 0);
  for (const SlotMove& move : plan.moves) {
    if (move.from != kNoOwner) out[move.from] += move.bytes;
    in[move.to] += move.bytes;
  }
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < in.size(); ++i) most = std::max({most, in[i], out[i]});
  const std::uint64_t limit =
      std::max<std::uint64_t>(input.pool->spec.rebalance.bandwidth_limit_bytes_per_s, 1);
  const std::uint64_t step = std::max<std::uint64_t>(MisplacedBudget(plan.map.slot_count), 1);
  return (most + limit - 1) / limit + (plan.moves.size() + step - 1) / step * kStepSeconds;
}

}  // namespace

Result<Proposer::Plan> Proposer::Make(const Input& input) {
  PoolPlanInput wanted;
  wanted.pool = input.pool;
  wanted.stored = input.stored;
  wanted.members = input.members;
  wanted.bytes_per_slot = input.bytes_per_slot;
  wanted.balance_slots_max = UINT32_MAX;
  wanted.at_rest = true;
  KVF_ASSIGN_OR_RETURN(const PlanResult plan, PlanPool(wanted));
  Plan out;
  out.goal = GoalOf(input, plan.map);
  if (plan.moves.empty()) return out;
  out.moves = MovesOf(plan);
  out.reason = ReasonOf(input);
  out.slots = plan.moves.size();
  out.bytes = plan.moved_bytes;
  out.eta_seconds = EtaSeconds(input, plan);
  return out;
}

Result<Proposer::Verdict> Proposer::Look(const Input& input) {
  std::string inputs = InputsOf(input);
  if (!plan_.has_value() || plan_->inputs != inputs) {
    KVF_ASSIGN_OR_RETURN(plan_, Make(input));
    plan_->inputs = std::move(inputs);
  }
  const RebalanceStatus& known = input.pool->status.rebalance;
  const ProposalStatus& last = known.proposal;
  Verdict out;
  out.last_approved = known.last_approved;
  if (last.approved) {
    const bool same_goal = last.id.compare(0, plan_->goal.size(), plan_->goal) == 0;
    if (same_goal && !plan_->moves.empty()) {
      out.proposal = last;
      out.may_move = true;
      return out;
    }
    out.last_approved = last.id;  // carried out, or overtaken: it cannot be used again
  }
  if (plan_->moves.empty()) return out;
  // With the last approval in it, so that the same moves some other day need a new one.
  const std::string id = plan_->goal + "-" + ShortHash(plan_->moves + out.last_approved);
  if (id == last.id && !last.approved) {
    out.proposal = last;
  } else {
    out.proposal = {id,           plan_->reason,      plan_->slots,
                    plan_->bytes, plan_->eta_seconds, kube::FormatTime(input.now_unix_us),
                    false};
  }
  const auto approved = input.pool->meta.annotations.find(kApproveAnnotation);
  out.proposal.approved = approved != input.pool->meta.annotations.end() && approved->second == id;
  return out;
}

}  // namespace kvfabric
