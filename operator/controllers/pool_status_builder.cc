#include "operator/controllers/pool_status_builder.h"

#include <algorithm>
#include <utility>

#include "operator/controllers/proposal.h"
#include "operator/kube/timestamp.h"

namespace kvfabric {
namespace {

using kube::Condition;
using kube::ConditionStatus;

// What the conditions are made of.
struct Sums {
  MemberCounts members;
  SlotCounts slots;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t hits = 0;
  std::uint64_t lookups = 0;
  std::uint64_t under_replicated_blocks = 0;
  std::uint32_t short_of_memory = 0;  // members with less than the pool asks for
  std::vector<std::string> troubles;  // at most a few, for a message
  std::uint32_t in_clear = 0;         // serving members that speak no TLS
  std::uint32_t uncertified = 0;      // serving members on the bootstrap certificate
  bool converged = true;
};

constexpr std::size_t kShownTroubles = 4;

void AddTrouble(Sums* sums, std::string text) {
  if (sums->troubles.size() < kShownTroubles) sums->troubles.push_back(std::move(text));
}

// Why a node that is back owns nothing.
std::string HeldBack(const PoolFacts& facts, const std::string& node) {
  for (const UnstableNodeStatus& unstable : facts.unstable_nodes) {
    if (unstable.node != node) continue;
    return "node " + node + " is back after " + std::to_string(unstable.failures) +
           " failures and gets no slots before " + unstable.held_until;
  }
  return "node " + node + " is back and gets no slots yet";
}

void AddMember(const PoolFacts& facts, const TrackedMember& tracked, Sums* sums) {
  const Member& member = tracked.plan.member;
  switch (member.state) {
    case MemberState::kDraining:
      ++sums->members.draining;
      break;
    case MemberState::kLost:
      ++sums->members.lost;
      AddTrouble(sums, tracked.held_back ? HeldBack(facts, member.node_name)
                                         : "node " + member.node_name + " is lost");
      return;
    case MemberState::kActive:
    case MemberState::kJoining:
      if (tracked.serving) {
        ++sums->members.ready;
        break;
      }
      [[fallthrough]];
    case MemberState::kRecovering:
    case MemberState::kSuspect:
      ++sums->members.recovering;
      AddTrouble(sums, "node " + member.node_name + " does not serve");
      break;
  }
  const NodeAgent* agent = facts.registry->Find(member.node_name);
  if (agent == nullptr || !agent->report.has_value()) return;
  const std::optional<AgentTlsReport>& tls = agent->report->tls;
  sums->in_clear += tls.has_value() ? 0U : 1U;
  const bool own =
      tls.has_value() && tls->own_certificate && tls->expires_s > facts.now_unix_us / 1'000'000;
  sums->uncertified += tls.has_value() && !own ? 1U : 0U;
  const AgentPoolReport* report = agent->report->FindPool(facts.pool->meta.uid);
  if (report == nullptr) return;
  sums->total_bytes += report->capacity_bytes;
  sums->used_bytes += report->used_bytes;
  sums->blocks += report->blocks;
  sums->hits += report->hit_blocks;
  sums->lookups += report->lookup_blocks;
  sums->under_replicated_blocks += report->under_replicated;
  const TierSpec* dram = facts.pool->spec.Tier(TierType::kDram);
  if (dram != nullptr && report->applied_generation == facts.pool->meta.generation &&
      report->capacity_bytes < dram->capacity_bytes) {
    ++sums->short_of_memory;
  }
}

void AddSlots(const PoolFacts& facts, Sums* sums) {
  if (facts.map == nullptr) return;
  const ShardMap& map = *facts.map;
  sums->slots.total = map.slot_count;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    const auto owners = map.ByteOwners(slot);
    const auto live = std::count_if(owners.begin(), owners.end(), [&](MemberIndex owner) {
      return owner != kNoOwner && map.members[owner].state != MemberState::kLost;
    });
    sums->slots.assigned += live > 0 ? 1U : 0U;
    sums->slots.under_replicated += live < static_cast<std::int64_t>(map.replicas) ? 1U : 0U;
  }
}

Sums SumUp(const PoolFacts& facts) {
  Sums sums;
  sums.members.desired = facts.desired;
  for (const TrackedMember& member : *facts.members) AddMember(facts, member, &sums);
  AddSlots(facts, &sums);
  for (const auto& [address, text] : facts.registry->refused()) AddTrouble(&sums, text);
  for (const auto& [node, text] : facts.registry->objections()) {
    AddTrouble(&sums, "node " + node + " refuses: " + text);
  }
  if (facts.map != nullptr) {
    sums.converged = HasConverged(*facts.members, *facts.map, facts.term, *facts.registry);
    if (!sums.converged) sums.slots.migrating = facts.migrating;
  }
  return sums;
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

std::string Percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? std::string() : std::to_string(part * 100 / whole) + "%";
}

Condition ConfigValid(const PoolFacts& facts) {
  if (!facts.config_reason.empty()) {
    return {
        "ConfigValid", ConditionStatus::kFalse, facts.config_reason, facts.config_message, "", 0};
  }
  const std::vector<std::string> simpler = Simplifications(facts.pool->spec);
  std::vector<std::string> remarks = simpler;
  const auto& annotations = facts.pool->meta.annotations;
  if (annotations.count(kConfirmLossAnnotation) != 0) {
    remarks.push_back(std::string("annotation ") + kConfirmLossAnnotation +
                      " is set: the nodes it names are not protected when many fail together; "
                      "remove it once they are back or gone");
  }
  return {"ConfigValid",
          ConditionStatus::kTrue,
          simpler.empty() ? "Valid" : "ValidButSimpler",
          Joined(remarks),
          "",
          0};
}

Condition Ready(const PoolFacts& facts, const Sums& sums) {
  const std::uint32_t wanted = facts.pool->spec.placement.min_nodes;
  if (!facts.config_reason.empty() && facts.map == nullptr) {
    return {"Ready", ConditionStatus::kFalse, "ConfigNotValid", "see ConfigValid", "", 0};
  }
  const std::string count = std::to_string(sums.members.ready) + " of " +
                            std::to_string(sums.members.desired) + " nodes serve";
  if (facts.map == nullptr) {
    return {"Ready", ConditionStatus::kFalse, "NoShardMap", "waiting for agents: " + count, "", 0};
  }
  if (sums.members.ready < wanted) {
    return {"Ready",
            ConditionStatus::kFalse,
            "TooFewNodes",
            count + ", minNodes is " + std::to_string(wanted),
            "",
            0};
  }
  if (sums.slots.assigned < sums.slots.total) {
    return {"Ready",
            ConditionStatus::kFalse,
            "SlotsWithoutOwner",
            std::to_string(sums.slots.total - sums.slots.assigned) + " slots have no live owner",
            "",
            0};
  }
  return {"Ready", ConditionStatus::kTrue, "Serving", count, "", 0};
}

std::string MassFailureText(const PoolFacts& facts) {
  const std::set<std::string>& nodes = facts.mass_failure;
  std::string some;
  std::size_t shown = 0;
  for (const std::string& node : nodes) {
    if (++shown > kShownTroubles) break;
    some += (some.empty() ? "" : ", ") + node;
  }
  if (nodes.size() > kShownTroubles) some += ", ...";
  const kube::ObjectName& name = facts.pool->meta.name;
  return std::to_string(nodes.size()) + " of " + std::to_string(facts.members->size()) +
         " nodes fell silent together (" + some +
         "): none is given up and nothing moves until they return. If they are gone for good: "
         "kubectl -n " +
         name.ns + " annotate kvp " + name.name + " " + kConfirmLossAnnotation +
         "=NODE[,NODE...] (or \"*\" for all)";
}

Condition Degraded(const PoolFacts& facts, const Sums& sums) {
  if (!facts.mass_failure.empty()) {
    return {"Degraded", ConditionStatus::kTrue, "MassFailure", MassFailureText(facts), "", 0};
  }
  if (!sums.troubles.empty()) {
    return {"Degraded", ConditionStatus::kTrue, "NodesMissing", Joined(sums.troubles), "", 0};
  }
  if (sums.slots.under_replicated > 0) {
    return {"Degraded",
            ConditionStatus::kTrue,
            "TooFewReplicas",
            std::to_string(sums.slots.under_replicated) +
                " slots have fewer owners than replicas: add nodes or lower replicas",
            "",
            0};
  }
  if (sums.under_replicated_blocks > 0) {
    return {"Degraded", ConditionStatus::kTrue, "CopiesMissing", "blocks wait for copies", "", 0};
  }
  return {"Degraded", ConditionStatus::kFalse, "AllWell", "", "", 0};
}

// Moves that a person has not agreed to yet.
bool Waits(const PoolFacts& facts) {
  return !facts.rebalance.proposal.id.empty() && !facts.rebalance.proposal.approved;
}

std::string WaitingText(const PoolFacts& facts) {
  const ProposalStatus& proposal = facts.rebalance.proposal;
  const kube::ObjectName& name = facts.pool->meta.name;
  return std::to_string(proposal.slots) + " slots would move (" + proposal.reason +
         "): kubectl -n " + name.ns + " annotate --overwrite kvp " + name.name + " " +
         kApproveAnnotation + "=" + proposal.id + ", or kvctl rebalance approve " + proposal.id;
}

Condition Progressing(const PoolFacts& facts, const Sums& sums) {
  const auto drains = [](const TrackedMember& m) {
    return m.plan.member.state == MemberState::kDraining && !m.drained;
  };
  if (std::any_of(facts.members->begin(), facts.members->end(), drains)) {
    return {"Progressing",
            ConditionStatus::kTrue,
            "NodesDraining",
            "nodes move their blocks out",
            "",
            0};
  }
  if (Waits(facts)) {
    return {"Progressing", ConditionStatus::kFalse, "WaitsForApproval", WaitingText(facts), "", 0};
  }
  const auto joining = std::count_if(
      facts.members->begin(), facts.members->end(),
      [](const TrackedMember& m) { return m.plan.member.state == MemberState::kJoining; });
  if (facts.map != nullptr && joining > 0) {
    return {"Progressing",
            ConditionStatus::kTrue,
            "NodesJoining",
            std::to_string(joining) + " nodes get their share step by step",
            "",
            0};
  }
  if (facts.rebalance.slots_remaining > 0) {
    return {"Progressing", ConditionStatus::kTrue, "SlotsMoving", "slots move for balance", "", 0};
  }
  if (!sums.converged) {
    return {
        "Progressing", ConditionStatus::kTrue, "MapSpreading", "agents take the new map", "", 0};
  }
  return {"Progressing", ConditionStatus::kFalse, "Settled", "", "", 0};
}

Condition Converged(const PoolFacts& facts, const Sums& sums) {
  if (facts.map == nullptr) {
    return {"ShardMapConverged", ConditionStatus::kUnknown, "NoShardMap", "", "", 0};
  }
  if (!sums.converged) {
    return {"ShardMapConverged",
            ConditionStatus::kFalse,
            "Spreading",
            "not every serving node has applied the map",
            "",
            0};
  }
  return {"ShardMapConverged", ConditionStatus::kTrue, "Applied", "", "", 0};
}

Condition CapacityOk(const Sums& sums) {
  if (sums.short_of_memory > 0) {
    return {"CapacityOK",
            ConditionStatus::kFalse,
            "TooLittleMemory",
            std::to_string(sums.short_of_memory) +
                " nodes have less than capacityPerNode: lower it, or give the agents larger arenas",
            "",
            0};
  }
  return {"CapacityOK", ConditionStatus::kTrue, "Enough", "", "", 0};
}

Condition TlsReady(const PoolFacts& facts, const Sums& sums) {
  if (facts.pool->spec.security.transport != "MTLS") {
    return {"TLSReady", ConditionStatus::kTrue, "NotWanted", "transport is Disabled", "", 0};
  }
  if (sums.in_clear > 0) {
    return {"TLSReady",
            ConditionStatus::kFalse,
            "AgentsInClear",
            std::to_string(sums.in_clear) +
                " agents speak in clear: set tls.bootstrapDir in their agent.yaml",
            "",
            0};
  }
  if (sums.uncertified > 0) {
    return {"TLSReady",
            ConditionStatus::kFalse,
            "CertificatesMissing",
            std::to_string(sums.uncertified) + " agents wait for a certificate of their own",
            "",
            0};
  }
  if (facts.map == nullptr) {
    return {"TLSReady", ConditionStatus::kUnknown, "NoShardMap", "waiting for agents", "", 0};
  }
  return {"TLSReady", ConditionStatus::kTrue, "Certified", "", "", 0};
}

void FillRebalance(const PoolFacts& facts, const Condition& progressing, PoolStatus* status) {
  status->rebalance = facts.rebalance;
  RebalanceStatus& rebalance = status->rebalance;
  const bool paused = facts.pool->spec.paused || facts.pool->spec.rebalance.mode == "Paused";
  if (paused) {
    rebalance.state = "Paused";
  } else if (Waits(facts)) {
    rebalance.state = "Waiting";
  } else {
    rebalance.state = progressing.status == ConditionStatus::kTrue ? "Moving" : "Idle";
  }
}

}  // namespace

bool HasConverged(const std::vector<TrackedMember>& members, const ShardMap& map,
                  std::uint64_t term, const AgentRegistry& registry) {
  return std::all_of(members.begin(), members.end(), [&](const TrackedMember& tracked) {
    if (!tracked.serving) return true;  // it gets the map when it is back
    const NodeAgent* agent = registry.Find(tracked.plan.member.node_name);
    const AgentPoolReport* report = agent != nullptr && agent->report.has_value()
                                        ? agent->report->FindPool(map.pool_uid)
                                        : nullptr;
    return report != nullptr && report->applied_epoch == map.epoch && report->applied_term == term;
  });
}

std::uint64_t HighestEpoch(const std::string& pool_uid, const AgentRegistry& registry) {
  std::uint64_t highest = 0;
  for (const auto& [name, agent] : registry.agents()) {
    if (!agent.report.has_value()) continue;
    if (const AgentPoolReport* report = agent.report->FindPool(pool_uid)) {
      highest = std::max(highest, report->applied_epoch);
    }
  }
  return highest;
}

PoolStatus BuildPoolStatus(const PoolFacts& facts) {
  const Sums sums = SumUp(facts);
  const Pool& pool = *facts.pool;
  PoolStatus status;
  status.observed_generation = pool.meta.generation;
  status.conditions = pool.status.conditions;
  const Condition progressing = Progressing(facts, sums);
  for (Condition condition :
       {Ready(facts, sums), progressing, Degraded(facts, sums), Converged(facts, sums),
        ConfigValid(facts), CapacityOk(sums), TlsReady(facts, sums)}) {
    condition.observed_generation = pool.meta.generation;
    kube::SetCondition(status.conditions, std::move(condition), facts.now_unix_us);
  }
  status.members = sums.members;
  status.slots = sums.slots;
  if (facts.map != nullptr) {
    status.epoch = facts.map->epoch;
    status.shard_map_name = pool.meta.name.name;
  }
  if (const TierSpec* dram = pool.spec.Tier(TierType::kDram)) {
    status.tiers.push_back({dram->name, sums.total_bytes, sums.used_bytes,
                            Percent(sums.used_bytes, sums.total_bytes), sums.blocks});
  }
  status.hit_ratio = Percent(sums.hits, sums.lookups);
  FillRebalance(facts, progressing, &status);
  status.last_node_loss = facts.loss;
  status.unstable_nodes = facts.unstable_nodes;
  NodeLossStatus& loss = status.last_node_loss;
  if (!loss.node.empty() && loss.recovered_at.empty() && sums.converged &&
      sums.under_replicated_blocks == 0 && sums.slots.assigned == sums.slots.total) {
    loss.recovered_at = kube::FormatTime(facts.now_unix_us);
  }
  return status;
}

bool MustWriteNow(const PoolStatus& stored, const PoolStatus& wanted) {
  if (stored.observed_generation != wanted.observed_generation) return true;
  // An approval takes effect once it is written.
  if (stored.rebalance.proposal.id != wanted.rebalance.proposal.id ||
      stored.rebalance.proposal.approved != wanted.rebalance.proposal.approved) {
    return true;
  }
  return std::any_of(wanted.conditions.begin(), wanted.conditions.end(), [&](const Condition& c) {
    const Condition* before = kube::FindCondition(stored.conditions, c.type);
    // The reason MassFailure asks for a person.
    const bool mass =
        before != nullptr && (c.reason == "MassFailure") != (before->reason == "MassFailure");
    return before == nullptr || before->status != c.status || mass;
  });
}

}  // namespace kvfabric
