#include "operator/specs/cluster_objects.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/json.h"

namespace kvfabric {
namespace {

using kube::Find;
using kube::Json;
using kube::StringAt;

// Set by Kubernetes itself for what the operator judges on its own: the node's health comes from
// the agent's stream, and a cordon is read from spec.unschedulable.
constexpr std::string_view kOwnTaints = "node.kubernetes.io/";

const Json* Path(const Json& root, const char* first, const char* second) {
  const Json* value = Find(root, first);
  return value == nullptr ? nullptr : Find(*value, second);
}

void ReadPorts(const Json& container, AgentPodFacts* pod) {
  const Json* ports = Find(container, "ports");
  if (ports == nullptr || !ports->is_array()) return;
  for (const Json& port : *ports) {
    const Json* number = Find(port, "containerPort");
    if (number == nullptr || !number->is_number_unsigned()) continue;
    const std::uint64_t value = number->get<std::uint64_t>();
    if (value > UINT16_MAX) continue;
    const std::string name = StringAt(port, "name");
    if (name == "grpc") pod->grpc_port = static_cast<std::uint16_t>(value);
    if (name == "bulk") pod->bulk_port = static_cast<std::uint16_t>(value);
  }
}

bool Tolerates(const Toleration& toleration, const Taint& taint) {
  if (!toleration.effect.empty() && toleration.effect != taint.effect) return false;
  if (toleration.key.empty()) return toleration.op == "Exists";
  if (toleration.key != taint.key) return false;
  return toleration.op == "Exists" || toleration.value == taint.value;
}

}  // namespace

Result<NodeFacts> DecodeNode(const kube::Object& object) {
  KVF_ASSIGN_OR_RETURN(const Json root, kube::ParseJson(object.json));
  NodeFacts node;
  node.name = object.meta.name.name;
  node.uid = object.meta.uid;
  node.labels = object.meta.labels;
  const auto drain = object.meta.annotations.find(kDrainAnnotation);
  node.drain_asked = drain != object.meta.annotations.end() && drain->second != "false";
  const Json* unschedulable = Path(root, "spec", "unschedulable");
  node.unschedulable =
      unschedulable != nullptr && unschedulable->is_boolean() && unschedulable->get<bool>();
  const Json* taints = Path(root, "spec", "taints");
  if (taints != nullptr && taints->is_array()) {
    for (const Json& taint : *taints) {
      node.taints.push_back(
          {StringAt(taint, "key"), StringAt(taint, "value"), StringAt(taint, "effect")});
    }
  }
  return node;
}

Result<AgentPodFacts> DecodeAgentPod(const kube::Object& object) {
  const auto label = [&](const char* key) {
    const auto it = object.meta.labels.find(key);
    return it == object.meta.labels.end() ? std::string() : it->second;
  };
  if (label("app.kubernetes.io/name") != "kvfabric" ||
      label("app.kubernetes.io/component") != "agent") {
    return NotFound("pod " + object.meta.name.ToString() + ": no agent");
  }
  KVF_ASSIGN_OR_RETURN(const Json root, kube::ParseJson(object.json));
  AgentPodFacts pod;
  pod.name = object.meta.name;
  pod.uid = object.meta.uid;
  pod.terminating = object.meta.deleting;
  const Json* spec = Find(root, "spec");
  if (spec != nullptr) {
    pod.node_name = StringAt(*spec, "nodeName");
    const Json* containers = Find(*spec, "containers");
    if (containers != nullptr && containers->is_array()) {
      for (const Json& container : *containers) ReadPorts(container, &pod);
    }
  }
  const Json* status = Find(root, "status");
  if (status != nullptr) {
    pod.ip = StringAt(*status, "podIP");
    pod.running = StringAt(*status, "phase") == "Running";
  }
  return pod;
}

bool NodeSelected(const NodeFacts& node, const PlacementSpec& placement) {
  return std::all_of(placement.node_selector.begin(), placement.node_selector.end(),
                     [&](const auto& wanted) {
                       const auto it = node.labels.find(wanted.first);
                       return it != node.labels.end() && it->second == wanted.second;
                     });
}

bool TaintAllowed(const Taint& taint, const PlacementSpec& placement) {
  if (taint.effect == "PreferNoSchedule" ||
      taint.key.compare(0, kOwnTaints.size(), kOwnTaints) == 0) {
    return true;
  }
  return std::any_of(placement.tolerations.begin(), placement.tolerations.end(),
                     [&](const Toleration& t) { return Tolerates(t, taint); });
}

bool NodeFits(const NodeFacts& node, const PlacementSpec& placement) {
  return NodeSelected(node, placement) &&
         std::all_of(node.taints.begin(), node.taints.end(),
                     [&](const Taint& taint) { return TaintAllowed(taint, placement); });
}

}  // namespace kvfabric
