#include "cli/fabric_view.h"

#include <algorithm>

#include "cli/files.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/yaml.h"
#include "operator/specs/shard_map_object.h"

namespace kvfabric::cli {
namespace {

constexpr std::size_t kMaxObjectFiles = 10'000;

// Objects of a kind as the operator's files hold them: API/PLURAL/[NAMESPACE/]NAME.yaml.
Result<std::vector<kube::ObjectPtr>> ReadObjectFiles(const FabricDirectory& directory,
                                                     kube::Kind kind) {
  const std::filesystem::path folder = directory.api() / std::string(kube::TraitsOf(kind).plural);
  std::vector<kube::ObjectPtr> objects;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end;
       !error && it != end && objects.size() < kMaxObjectFiles; it.increment(error)) {
    if (it->path().extension() != ".yaml") continue;
    KVF_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(it->path()));
    KVF_ASSIGN_OR_RETURN(const std::vector<std::string> documents, kube::YamlToJson(yaml));
    if (documents.empty()) continue;
    KVF_ASSIGN_OR_RETURN(kube::Object object, kube::ParseObject(kind, documents[0]));
    objects.push_back(std::make_shared<const kube::Object>(std::move(object)));
  }
  return objects;
}

Result<std::vector<PoolView>> DecodeAll(const std::vector<kube::ObjectPtr>& pools,
                                        const std::vector<kube::ObjectPtr>& maps) {
  std::vector<PoolView> views;
  for (const kube::ObjectPtr& object : pools) {
    KVF_ASSIGN_OR_RETURN(PoolView view, DecodePoolView(*object));
    for (const kube::ObjectPtr& map : maps) {
      if (map->meta.name != object->meta.name) continue;
      KVF_ASSIGN_OR_RETURN(ShardMapObject decoded, DecodeShardMap(*map));
      // A map of an earlier pool of this name is not this pool's.
      if (decoded.map.pool_uid == view.pool.meta.uid) view.map = std::move(decoded.map);
    }
    views.push_back(std::move(view));
  }
  std::sort(views.begin(), views.end(),
            [](const PoolView& a, const PoolView& b) { return a.name < b.name; });
  return views;
}

Result<std::vector<PoolView>> LoadPoolsFromFiles(const FabricDirectory& directory) {
  KVF_ASSIGN_OR_RETURN(const auto pools, ReadObjectFiles(directory, kube::Kind::kPool));
  KVF_ASSIGN_OR_RETURN(const auto maps, ReadObjectFiles(directory, kube::Kind::kShardMap));
  return DecodeAll(pools, maps);
}

}  // namespace

kube::ConditionStatus PoolView::condition(std::string_view type) const {
  const kube::Condition* found = kube::FindCondition(status().conditions, type);
  if (found == nullptr || status().observed_generation < pool.meta.generation)
    return kube::ConditionStatus::kUnknown;
  return found->status;
}

bool PoolView::ready() const { return condition("Ready") == kube::ConditionStatus::kTrue; }

Result<PoolView> DecodePoolView(const kube::Object& object) {
  PoolView view;
  KVF_ASSIGN_OR_RETURN(view.pool, DecodePool(object));
  view.name = object.meta.name.ToString();
  view.json = object.json;
  return view;
}

Result<std::vector<PoolView>> LoadPools(kube::KubeClient& api) {
  KVF_ASSIGN_OR_RETURN(const kube::ObjectList pools, api.List(kube::Kind::kPool, ""));
  KVF_ASSIGN_OR_RETURN(const kube::ObjectList maps, api.List(kube::Kind::kShardMap, ""));
  return DecodeAll(pools.items, maps.items);
}

Result<FabricView> LoadView(const FabricDirectory& directory) {
  KVF_ASSIGN_OR_RETURN(const FabricSettings settings, directory.LoadSettings());
  FabricView view;
  view.operator_process = StateOf(directory.operator_pid());
  for (const FabricNode& node : settings.nodes) {
    const auto process = ReadPidFile(directory.agent_pid(node.name));
    view.nodes.push_back({.node = node,
                          .process = StateOf(directory.agent_pid(node.name)),
                          .pid = process ? static_cast<std::uint64_t>(process->pid) : 0});
  }
  const auto api = ConnectApi(directory);
  if (api.ok()) {
    KVF_ASSIGN_OR_RETURN(view.pools, LoadPools(**api));
    return view;
  }
  view.from_files = true;
  view.why_files = api.status().message();
  KVF_ASSIGN_OR_RETURN(view.pools, LoadPoolsFromFiles(directory));
  return view;
}

std::optional<MembershipView> MembershipOf(const ShardMap& map, const std::string& node) {
  for (std::size_t i = 0; i < map.members.size(); ++i) {
    if (map.members[i].node_name != node) continue;
    MembershipView view;
    view.state = map.members[i].state;
    for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
      const auto owners = map.Owners(slot);
      if (owners[0] == i) ++view.first_owner_slots;
      view.owner_slots += static_cast<std::uint64_t>(std::count(owners.begin(), owners.end(), i));
    }
    return view;
  }
  return std::nullopt;
}

}  // namespace kvfabric::cli
