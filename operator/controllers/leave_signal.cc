#include "operator/controllers/leave_signal.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvfabric {
namespace {

// Taints that are put on a node when it ends, whatever their effect and whoever tolerates them.
struct EndTaint {
  std::string_view key;
  std::string_view value;  // "" = any
};
constexpr std::array<EndTaint, 9> kEndTaints{{
    {"ToBeDeletedByClusterAutoscaler", ""},
    {"karpenter.sh/disrupted", ""},
    {"karpenter.sh/disruption", "disrupting"},  // before Karpenter v1
    {"node.kubernetes.io/out-of-service", ""},
    {"cloud.google.com/impending-node-termination", ""},
    {"aws-node-termination-handler/spot-itn", ""},
    {"aws-node-termination-handler/scheduled-maintenance", ""},
    {"aws-node-termination-handler/asg-lifecycle-termination", ""},
    {"aws-node-termination-handler/rebalance-recommendation", ""},
}};

bool IsEnd(const Taint& taint) {
  return std::any_of(kEndTaints.begin(), kEndTaints.end(), [&](const EndTaint& end) {
    return taint.key == end.key && (end.value.empty() || taint.value == end.value);
  });
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Network plugins and device drivers taint a node while their own pod restarts
// (node.cilium.io/agent-not-ready): health, as the node.kubernetes.io/ ones, not a wish.
bool IsHealth(const Taint& taint) { return EndsWith(taint.key, "not-ready"); }

}  // namespace

std::string LeaveSignal(const PoolSpec& spec, const NodeFacts& node) {
  if (node.drain_asked) return std::string("annotation ") + kDrainAnnotation;
  if (node.unschedulable && spec.rebalance.drain_on_cordon) return "cordoned";
  const auto end = std::find_if(node.taints.begin(), node.taints.end(), IsEnd);
  if (end != node.taints.end()) return "taint " + end->key;
  if (!NodeSelected(node, spec.placement)) return "spec.placement.nodeSelector does not cover it";
  const auto evicted = std::find_if(node.taints.begin(), node.taints.end(), [&](const Taint& t) {
    return t.effect == "NoExecute" && !IsHealth(t) && !TaintAllowed(t, spec.placement);
  });
  return evicted == node.taints.end() ? "" : "taint " + evicted->key + " is not tolerated";
}

bool MayJoin(const PoolSpec& spec, const NodeFacts& node) {
  return LeaveSignal(spec, node).empty() && NodeFits(node, spec.placement);
}

}  // namespace kvfabric
