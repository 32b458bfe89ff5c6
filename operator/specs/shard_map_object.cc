#include "operator/specs/shard_map_object.h"

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/specs/crd_schema.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {
namespace {

using kube::Json;
using kube::Kind;
using kube::StringAt;

Json EncodeMember(const Member& member, std::size_t index) {
  Json out = {{"index", index},
              {"nodeName", member.node_name},
              {"agentUID", member.agent_uid},
              {"address", member.address},
              {"port", member.grpc_port},
              {"bulkPort", member.bulk_port},
              {"weight", member.weight},
              {"state", MemberStateName(member.state)}};
  if (!member.zone.empty()) out["zone"] = member.zone;
  return out;
}

Result<Member> DecodeMember(const Json& json, std::size_t index) {
  const auto number = [&](const char* key) { return json.at(key).get<std::uint64_t>(); };
  if (number("index") != index) {
    return InvalidArgument("spec.members[" + std::to_string(index) + "].index: " +
                           std::to_string(number("index")) + ": must be its place in the list");
  }
  Member out;
  out.node_name = StringAt(json, "nodeName");
  out.agent_uid = StringAt(json, "agentUID");
  out.address = StringAt(json, "address");
  out.grpc_port = static_cast<std::uint16_t>(number("port"));
  out.bulk_port = static_cast<std::uint16_t>(number("bulkPort"));
  out.zone = StringAt(json, "zone");
  out.weight = number("weight");
  const std::optional<MemberState> state = ParseMemberState(StringAt(json, "state"));
  if (!state.has_value()) return InvalidArgument("spec.members: unknown state");
  out.state = *state;
  return out;
}

}  // namespace

Result<ShardMapObject> DecodeShardMap(const kube::Object& object) {
  std::vector<kube::Cause> faults;
  KVF_ASSIGN_OR_RETURN(const std::string checked,
                       CrdSchema::Of(Kind::kShardMap).Check(object.json, nullptr, &faults));
  if (!faults.empty()) return kube::Invalid(Kind::kShardMap, object.meta.name, faults);
  KVF_ASSIGN_OR_RETURN(const Json root, kube::ParseJson(checked));
  const Json& spec = root.at("spec");
  ShardMapObject out;
  out.meta = object.meta;
  ShardMap& map = out.map;
  map.pool_uid = StringAt(spec, "poolUID");
  map.term = spec.at("term").get<std::uint64_t>();
  map.epoch = spec.at("epoch").get<std::uint64_t>();
  map.slot_count = spec.at("slotCount").get<std::uint32_t>();
  map.replicas = spec.at("replicas").get<std::uint32_t>();
  map.owners_per_slot = spec.at("owners").get<std::uint32_t>();
  for (const Json& member : spec.at("members")) {
    KVF_ASSIGN_OR_RETURN(Member decoded, DecodeMember(member, map.members.size()));
    map.members.push_back(std::move(decoded));
  }
  KVF_ASSIGN_OR_RETURN(map.table, DecodeTable(StringAt(spec, "table"), map.shape()));
  if (TableChecksumText(map.table) != StringAt(spec, "checksum")) {
    return DataLoss("KVCacheShardMap \"" + object.meta.name.ToString() +
                    "\": read: the table does not match its checksum; delete the object and the "
                    "operator makes a new one");
  }
  KVF_RETURN_IF_ERROR(map.Validate());
  return out;
}

Result<std::string> EncodeShardMap(const kube::ObjectMeta& pool, const ShardMap& map,
                                   std::uint64_t version) {
  KVF_RETURN_IF_ERROR(map.Validate());
  Json members = Json::array();
  for (const Member& member : map.members) members.push_back(EncodeMember(member, members.size()));
  Json object = {{"apiVersion", kube::ApiVersionOf(Kind::kShardMap)},
                 {"kind", "KVCacheShardMap"},
                 {"metadata",
                  {{"namespace", pool.name.ns},
                   {"name", pool.name.name},
                   {"ownerReferences",
                    {{{"apiVersion", kube::ApiVersionOf(Kind::kPool)},
                      {"kind", "KVCachePool"},
                      {"name", pool.name.name},
                      {"uid", pool.uid},
                      {"controller", true}}}}}},
                 {"spec",
                  {{"poolUID", map.pool_uid},
                   {"term", map.term},
                   {"epoch", map.epoch},
                   {"slotCount", map.slot_count},
                   {"replicas", map.replicas},
                   {"owners", map.owners_per_slot},
                   {"members", std::move(members)},
                   {"table", EncodeTable(map.table)},
                   {"checksum", TableChecksumText(map.table)}}}};
  if (version != 0) object["metadata"]["resourceVersion"] = std::to_string(version);
  return kube::DumpJson(object);
}

}  // namespace kvfabric
