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
#include "placement/shard_map.h"

namespace kvfabric::cli {

struct TierView {
  std::string name;
  std::uint64_t total_bytes = 0, used_bytes = 0, blocks = 0;
};

struct RebalanceView {
  std::string state;
  std::string reason;
  std::uint64_t slots_moved = 0, slots_remaining = 0, bytes_moved = 0;
};

struct PoolView {
  std::string name;  // namespace/name
  std::string uid;
  std::int64_t generation = 0, observed_generation = 0;
  std::uint64_t epoch = 0;
  std::vector<kube::Condition> conditions;
  std::uint32_t members_desired = 0, members_ready = 0, members_recovering = 0,
                members_draining = 0, members_lost = 0;
  std::uint64_t slots_total = 0, slots_assigned = 0, slots_migrating = 0,
                slots_under_replicated = 0;
  std::vector<TierView> tiers;
  std::string hit_ratio;
  RebalanceView rebalance;
  std::optional<ShardMap> map;  // none before the first plan
  std::string json;             // the whole resource

  // Status of a condition; Unknown when it is not there or not of this generation.
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

// A KVCacheShardMap resource.
Result<ShardMap> DecodeMapObject(const std::string& json);
// A KVCachePool resource, without its map.
Result<PoolView> DecodePoolObject(const kube::Object& object);

}  // namespace kvfabric::cli
