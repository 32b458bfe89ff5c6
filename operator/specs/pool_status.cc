// WithStatus: PoolStatus as JSON.

#include <nlohmann/json.hpp>

#include "operator/kube/json.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {
namespace {

using kube::Json;

void SetText(Json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}

Json Conditions(const std::vector<kube::Condition>& conditions) {
  Json out = Json::array();
  for (const kube::Condition& condition : conditions) {
    out.push_back({{"type", condition.type},
                   {"status", kube::ConditionStatusName(condition.status)},
                   {"reason", condition.reason},
                   {"message", condition.message},
                   {"lastTransitionTime", condition.last_transition_time},
                   {"observedGeneration", condition.observed_generation}});
  }
  return out;
}

Json Proposal(const ProposalStatus& status) {
  Json out = {{"id", status.id},
              {"slots", status.slots},
              {"bytes", status.bytes},
              {"etaSeconds", status.eta_seconds},
              {"approved", status.approved}};
  SetText(out, "reason", status.reason);
  SetText(out, "createdAt", status.created_at);
  return out;
}

Json Rebalance(const RebalanceStatus& status) {
  Json out = {{"state", status.state},
              {"slotsMoved", status.slots_moved},
              {"slotsRemaining", status.slots_remaining},
              {"bytesMoved", status.bytes_moved}};
  SetText(out, "reason", status.reason);
  SetText(out, "startedAt", status.started_at);
  SetText(out, "lastApproved", status.last_approved);
  if (!status.proposal.id.empty()) out["proposal"] = Proposal(status.proposal);
  return out;
}

Json NodeLoss(const NodeLossStatus& status) {
  Json out = {{"node", status.node}, {"at", status.at}, {"slotsLost", status.slots_lost}};
  SetText(out, "recoveredAt", status.recovered_at);
  return out;
}

}  // namespace

Result<std::string> WithStatus(const kube::ObjectMeta& meta, const PoolStatus& status) {
  Json out = {{"observedGeneration", status.observed_generation},
              {"conditions", Conditions(status.conditions)},
              {"epoch", status.epoch},
              {"members",
               {{"desired", status.members.desired},
                {"ready", status.members.ready},
                {"recovering", status.members.recovering},
                {"draining", status.members.draining},
                {"lost", status.members.lost}}},
              {"slots",
               {{"total", status.slots.total},
                {"assigned", status.slots.assigned},
                {"migrating", status.slots.migrating},
                {"underReplicated", status.slots.under_replicated}}}};
  if (!status.shard_map_name.empty()) out["shardMapRef"] = {{"name", status.shard_map_name}};
  Json tiers = Json::array();
  for (const TierStatus& tier : status.tiers) {
    Json entry = {{"name", tier.name},
                  {"totalBytes", tier.total_bytes},
                  {"usedBytes", tier.used_bytes},
                  {"blocks", tier.blocks}};
    SetText(entry, "used", tier.used);
    tiers.push_back(std::move(entry));
  }
  out["tiers"] = std::move(tiers);
  SetText(out, "hitRatio", status.hit_ratio);
  if (!status.rebalance.state.empty()) out["rebalance"] = Rebalance(status.rebalance);
  if (!status.last_node_loss.node.empty()) out["lastNodeLoss"] = NodeLoss(status.last_node_loss);
  Json unstable = Json::array();
  for (const UnstableNodeStatus& node : status.unstable_nodes) {
    unstable.push_back(
        {{"node", node.node}, {"failures", node.failures}, {"heldUntil", node.held_until}});
  }
  if (!unstable.empty()) out["unstableNodes"] = std::move(unstable);
  const Json object = {{"apiVersion", kube::ApiVersionOf(kube::Kind::kPool)},
                       {"kind", "KVCachePool"},
                       {"metadata",
                        {{"namespace", meta.name.ns},
                         {"name", meta.name.name},
                         {"uid", meta.uid},
                         {"resourceVersion", std::to_string(meta.resource_version)}}},
                       {"spec", Json::object()},
                       {"status", std::move(out)}};
  return kube::DumpJson(object);
}

}  // namespace kvfabric
