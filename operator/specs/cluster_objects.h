#pragma once

// Nodes and Pods as far as the operator reads them. What people and clusters may leave out is
// empty here, never an error.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "operator/kube/object.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

struct Taint {
  std::string key;
  std::string value;
  std::string effect;
  bool operator==(const Taint&) const = default;
};

struct NodeFacts {
  std::string name;
  std::string uid;
  std::map<std::string, std::string> labels;
  std::vector<Taint> taints;
  bool unschedulable = false;
  bool drain_asked = false;  // annotation kvfabric.io/drain, with any value but "false"
  bool operator==(const NodeFacts&) const = default;
};

struct AgentPodFacts {
  kube::ObjectName name;
  std::string uid;
  std::string node_name;
  std::string ip;
  std::uint16_t grpc_port = 0;
  std::uint16_t bulk_port = 0;
  bool running = false;
  bool terminating = false;
  bool operator==(const AgentPodFacts&) const = default;
};

inline constexpr const char* kAgentNamespace = "kvfabric-system";
inline constexpr const char* kDrainAnnotation = "kvfabric.io/drain";

Result<NodeFacts> DecodeNode(const kube::Object& object);
// NOT_FOUND for a pod that is no agent of ours (by its labels).
Result<AgentPodFacts> DecodeAgentPod(const kube::Object& object);

// The pool's nodeSelector covers the node.
bool NodeSelected(const NodeFacts& node, const PlacementSpec& placement);
// The taint does not count, or the pool tolerates it.
bool TaintAllowed(const Taint& taint, const PlacementSpec& placement);
// Both, of all its taints: may this node hold bytes of the pool?
bool NodeFits(const NodeFacts& node, const PlacementSpec& placement);

}  // namespace kvfabric
