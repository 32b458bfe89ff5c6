#include "cli/fabric_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/yaml.h"
#include "placement/shard_map_codec.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxObjectFiles = 10'000;

// Reading a status must not fail on a field that is absent or of another kind.
std::uint64_t NumberAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}
std::uint32_t CountAt(const Json& object, const char* key) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(NumberAt(object, key), UINT32_MAX));
}
std::string TextAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}
Json ObjectAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : Json::object();
}
Json ArrayAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : Json::array();
}

Result<Member> DecodeMember(const Json& json) {
  Member member;
  member.node_name = TextAt(json, "nodeName");
  member.agent_uid = TextAt(json, "agentUID");
  member.address = TextAt(json, "address");
  member.grpc_port = static_cast<std::uint16_t>(CountAt(json, "port"));
  member.bulk_port = static_cast<std::uint16_t>(CountAt(json, "bulkPort"));
  member.zone = TextAt(json, "zone");
  member.weight = NumberAt(json, "weight");
  const auto state = ParseMemberState(TextAt(json, "state"));
  if (!state) return DataLoss("member " + member.node_name + ": unknown state");
  member.state = *state;
  return member;
}

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
    KVF_ASSIGN_OR_RETURN(PoolView view, DecodePoolObject(*object));
    for (const kube::ObjectPtr& map : maps) {
      if (map->meta.name != object->meta.name) continue;
      KVF_ASSIGN_OR_RETURN(ShardMap decoded, DecodeMapObject(map->json));
      // A map of an earlier pool of this name is not this pool's.
      if (decoded.pool_uid == view.uid) view.map = std::move(decoded);
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
  const kube::Condition* found = kube::FindCondition(conditions, type);
  if (found == nullptr || observed_generation < generation) return kube::ConditionStatus::kUnknown;
  return found->status;
}

bool PoolView::ready() const { return condition("Ready") == kube::ConditionStatus::kTrue; }

Result<ShardMap> DecodeMapObject(const std::string& json) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) return DataLoss("shard map: not a JSON object");
  const Json spec = ObjectAt(object, "spec");
  ShardMap map;
  map.pool_uid = TextAt(spec, "poolUID");
  map.term = NumberAt(spec, "term");
  map.epoch = NumberAt(spec, "epoch");
  map.slot_count = CountAt(spec, "slotCount");
  map.replicas = CountAt(spec, "replicas");
  map.owners_per_slot = CountAt(spec, "owners");
  for (const Json& entry : ArrayAt(spec, "members")) {
    KVF_ASSIGN_OR_RETURN(map.members.emplace_back(), DecodeMember(entry));
  }
  KVF_ASSIGN_OR_RETURN(map.table,
                       DecodeTable(TextAt(spec, "table"), {.slot_count = map.slot_count,
                                                           .owners_per_slot = map.owners_per_slot,
                                                           .member_count = map.members.size()}));
  KVF_RETURN_IF_ERROR(map.Validate());
  return map;
}

Result<PoolView> DecodePoolObject(const kube::Object& object) {
  const Json json = Json::parse(object.json, nullptr, false);
  if (!json.is_object()) return DataLoss("pool: not a JSON object");
  const Json status = ObjectAt(json, "status");
  PoolView view;
  view.name = object.meta.name.ToString();
  view.uid = object.meta.uid;
  view.generation = object.meta.generation;
  view.observed_generation = static_cast<std::int64_t>(NumberAt(status, "observedGeneration"));
  view.epoch = NumberAt(status, "epoch");
  for (const Json& entry : ArrayAt(status, "conditions")) {
    view.conditions.push_back({.type = TextAt(entry, "type"),
                               .status = kube::ParseConditionStatus(TextAt(entry, "status")),
                               .reason = TextAt(entry, "reason"),
                               .message = TextAt(entry, "message"),
                               .last_transition_time = TextAt(entry, "lastTransitionTime"),
                               .observed_generation = 0});
  }
  const Json members = ObjectAt(status, "members");
  view.members_desired = CountAt(members, "desired");
  view.members_ready = CountAt(members, "ready");
  view.members_recovering = CountAt(members, "recovering");
  view.members_draining = CountAt(members, "draining");
  view.members_lost = CountAt(members, "lost");
  const Json slots = ObjectAt(status, "slots");
  view.slots_total = NumberAt(slots, "total");
  view.slots_assigned = NumberAt(slots, "assigned");
  view.slots_migrating = NumberAt(slots, "migrating");
  view.slots_under_replicated = NumberAt(slots, "underReplicated");
  for (const Json& entry : ArrayAt(status, "tiers")) {
    view.tiers.push_back({.name = TextAt(entry, "name"),
                          .total_bytes = NumberAt(entry, "totalBytes"),
                          .used_bytes = NumberAt(entry, "usedBytes"),
                          .blocks = NumberAt(entry, "blocks")});
  }
  view.hit_ratio = TextAt(status, "hitRatio");
  const Json rebalance = ObjectAt(status, "rebalance");
  view.rebalance = {.state = TextAt(rebalance, "state"),
                    .reason = TextAt(rebalance, "reason"),
                    .slots_moved = NumberAt(rebalance, "slotsMoved"),
                    .slots_remaining = NumberAt(rebalance, "slotsRemaining"),
                    .bytes_moved = NumberAt(rebalance, "bytesMoved")};
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
