#include "operator/controllers/pool_events.h"

#include <string>
#include <utility>

namespace kvfabric {
namespace {

using kube::Condition;
using kube::ConditionStatus;
using kube::EventText;

// The conditions whose turns people want to hear of, and which status of each is the bad one.
constexpr std::pair<const char*, ConditionStatus> kTold[] = {
    {"Ready", ConditionStatus::kFalse},
    {"Degraded", ConditionStatus::kTrue},
    {"ConfigValid", ConditionStatus::kFalse},
    {"CapacityOK", ConditionStatus::kFalse},
};

void AddCondition(const Condition* before, const Condition& now, ConditionStatus bad,
                  std::vector<EventText>* out) {
  const bool is_bad = now.status == bad;
  // A pool begins without agents and without a map: no news. A fault in what was written is.
  if (before == nullptr && !(is_bad && now.type == "ConfigValid")) return;
  if (before != nullptr) {
    const bool other_trouble = is_bad && before->reason != now.reason;
    if (before->status == now.status && !other_trouble) return;
  }
  out->push_back({is_bad, now.reason, now.type, now.message.empty() ? now.reason : now.message});
}

std::string TextOf(const ProposalStatus& proposal) {
  return "proposal " + proposal.id + ": " + std::to_string(proposal.slots) + " slots, " +
         std::to_string(proposal.bytes) + " bytes, about " + std::to_string(proposal.eta_seconds) +
         " s (" + proposal.reason + ")";
}

void AddRebalance(const RebalanceStatus& before, const RebalanceStatus& now,
                  std::vector<EventText>* out) {
  const ProposalStatus& proposal = now.proposal;
  if (!proposal.id.empty() && proposal.id != before.proposal.id) {
    out->push_back({false, "RebalanceProposed", "Rebalance", TextOf(proposal)});
  }
  if (proposal.approved && !before.proposal.approved) {
    out->push_back({false, "RebalanceApproved", "Rebalance", TextOf(proposal)});
  }
  if (now.last_approved != before.last_approved && proposal.id.empty()) {
    out->push_back(
        {false, "RebalanceDone", "Rebalance", "proposal " + now.last_approved + " is carried out"});
  }
}

void AddLoss(const NodeLossStatus& before, const NodeLossStatus& now, std::vector<EventText>* out) {
  if (now.node.empty()) return;
  const bool news = now.node != before.node || now.at != before.at;
  if (news) {
    out->push_back({true, "NodeLost", "Reassign",
                    "node " + now.node + " is lost: " + std::to_string(now.slots_lost) +
                        " slots were re-assigned"});
  }
  if (!now.recovered_at.empty() && (news || before.recovered_at.empty())) {
    out->push_back({false, "NodeLossRecovered", "Reassign",
                    "all slots of node " + now.node + " have owners and copies again"});
  }
}

}  // namespace

std::vector<EventText> EventsOf(const PoolStatus& before, const PoolStatus& after) {
  std::vector<EventText> out;
  for (const auto& [type, bad] : kTold) {
    if (const Condition* now = kube::FindCondition(after.conditions, type)) {
      AddCondition(kube::FindCondition(before.conditions, type), *now, bad, &out);
    }
  }
  AddRebalance(before.rebalance, after.rebalance, &out);
  AddLoss(before.last_node_loss, after.last_node_loss, &out);
  return out;
}

}  // namespace kvfabric
