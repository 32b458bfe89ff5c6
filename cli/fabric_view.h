#pragma once

// FabricView: what there is to see of a fabric: its processes, and its pools as the operator last
// wrote them, by the API or, with the operator down, from its files. Values; one thread.

#include <optional>
#include <string>
#include <vector>

#include "cli/fabric_directory.h"
#include "cli/local_fabric.h"
#include "operator/kube/conditions.h"
#include "operator/kube/object.h"
#include "operator/specs/pool_spec.h"
#include "placement/shard_map.h"

namespace kvfabric::cli {

struct PoolView {
  std::string name;  // namespace/name
  Pool pool;
  std::optional<ShardMap> map;  // none before the first plan
  std::string json;             // the whole resource

  const PoolStatus& status() const { return pool.status; }
  // Unknown when it is not there, or the status is of an earlier generation.
  kube::ConditionStatus condition(std::string_view type) const;
  bool ready() const;
};

struct NodeView {
  FabricNode node;
  ProcessState process = ProcessState::kNeverStarted;
  std::uint64_t pid = 0;
};

struct FabricView {
  ProcessState operator_process = ProcessState::kNeverStarted;
  bool from_files = false;
  std::string why_files;  // why the API was not asked
  std::vector<PoolView> pools;
  std::vector<NodeView> nodes;
};

Result<FabricView> LoadView(const FabricDirectory& directory);
// Of the API only; UNAVAILABLE when it does not answer.
Result<std::vector<PoolView>> LoadPools(kube::KubeClient& api);

// How many byte columns of `map` a node has, and its state there; nullopt: not a member.
struct MembershipView {
  MemberState state = MemberState::kActive;
  std::uint64_t first_owner_slots = 0;
  std::uint64_t owner_slots = 0;  // directory columns, first ones included
};
std::optional<MembershipView> MembershipOf(const ShardMap& map, const std::string& node);

// A KVCachePool resource, without its map.
Result<PoolView> DecodePoolView(const kube::Object& object);

}  // namespace kvfabric::cli
