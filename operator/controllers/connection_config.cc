#include "operator/controllers/connection_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/specs/cluster_objects.h"

namespace kvfabric {
namespace {

using kube::Json;
using kube::Kind;

constexpr const char* kSocket = "unix:/run/kvfabric/agent.sock";
constexpr const char* kBulkPort = "7071";
// Agents need not all be named: a client uses the first that answers.
constexpr std::size_t kMaxEndpoints = 16;

void Add(std::string* list, const std::string& entry) {
  *list += (list->empty() ? "" : ",") + entry;
}

// In the client's form and order of preference.
std::string EndpointsOf(const Pool& pool, const ShardMap* map, bool from_members) {
  std::string out;
  if (from_members) {
    const std::size_t count = map == nullptr ? 0 : std::min(map->members.size(), kMaxEndpoints);
    for (std::size_t i = 0; i < count; ++i) {
      const Member& member = map->members[i];
      Add(&out, "tcp:" + member.address + ":" + std::to_string(member.bulk_port));
    }
    return out;
  }
  Add(&out, kSocket);
  // In clear only: to other nodes the agent or the sidecar speaks TLS, not the engine.
  if (pool.spec.security.transport == "Disabled") {
    for (const char* service : {"kvfabric-agent-local", "kvfabric-agent"}) {
      Add(&out, std::string("tcp:") + service + "." + kAgentNamespace + ".svc:" + kBulkPort);
    }
  }
  return out;
}

}  // namespace

std::map<std::string, std::string> ConnectionConfig::DataFor(const Pool& pool, const ShardMap* map,
                                                             bool from_members) {
  std::map<std::string, std::string> out;
  out["pool"] = pool.meta.name.ToString();
  out["poolUID"] = pool.meta.uid;
  out["endpoints"] = EndpointsOf(pool, map, from_members);
  const PoolSpec& spec = pool.spec;
  out["codec"] = spec.codec;
  out["lookupDeadline"] = std::to_string(spec.access.lookup_deadline.count()) + "ms";
  // Lines of the fingerprint that an engine of this pool must have.
  if (!spec.domain.models.empty()) {
    for (const std::string& model : spec.domain.models) Add(&out["models"], model);
  }
  if (spec.domain.block_tokens) out["blockTokens"] = std::to_string(*spec.domain.block_tokens);
  if (!spec.domain.hash_algorithm.empty()) out["hashAlgorithm"] = spec.domain.hash_algorithm;
  if (!spec.domain.hash_seed.empty()) out["hashSeed"] = spec.domain.hash_seed;
  // The same for envFrom.
  std::string env = "KVFABRIC_POOL=" + out["pool"] + "\nKVFABRIC_ENDPOINTS=" + out["endpoints"];
  if (!spec.domain.hash_seed.empty()) env += "\nPYTHONHASHSEED=" + spec.domain.hash_seed;
  out["env"] = env + "\n";
  return out;
}

Status ConnectionConfig::Keep(const Pool& pool, const ShardMap* map, kube::KubeClient& api,
                              Clock::TimePoint now) {
  std::map<std::string, std::string> wanted = DataFor(pool, map, options_.from_members);
  const bool due = !checked_.has_value() || now - *checked_ >= options_.check;
  if (!due && wanted == kept_) return Status::Ok();
  // A write that fails is tried again at the next check, not at each look.
  checked_ = now;
  kept_ = std::move(wanted);
  return Write(pool, kept_, api);
}

Status ConnectionConfig::Write(const Pool& pool, const std::map<std::string, std::string>& data,
                               kube::KubeClient& api) const {
  const kube::ObjectName name{pool.meta.name.ns, pool.meta.name.name + "-kvfabric"};
  Json wanted = {{"apiVersion", kube::ApiVersionOf(Kind::kConfigMap)},
                 {"kind", "ConfigMap"},
                 {"metadata",
                  {{"namespace", name.ns},
                   {"name", name.name},
                   {"labels",
                    {{"app.kubernetes.io/name", "kvfabric"},
                     {"app.kubernetes.io/component", "connection"},
                     {"app.kubernetes.io/managed-by", "kvfabric-operator"}}},
                   {"ownerReferences",
                    {{{"apiVersion", kube::ApiVersionOf(Kind::kPool)},
                      {"kind", "KVCachePool"},
                      {"name", pool.meta.name.name},
                      {"uid", pool.meta.uid},
                      {"controller", true}}}}}},
                 {"data", data}};
  const Result<kube::ObjectPtr> found = api.Get(Kind::kConfigMap, name);
  if (kube::IsNotFound(found.status())) {
    return api.Create(Kind::kConfigMap, kube::DumpJson(wanted)).status();
  }
  if (!found.ok()) return found.status();
  const auto& owners = (*found)->meta.owners;
  const bool ours = std::any_of(owners.begin(), owners.end(), [&](const kube::OwnerReference& o) {
    return o.kind == "KVCachePool" && o.name == pool.meta.name.name;
  });
  if (!ours) {
    return AlreadyExists("ConfigMap " + name.ToString() +
                         ": not of this pool, and left alone: delete or rename it");
  }
  KVF_ASSIGN_OR_RETURN(Json stored, kube::ParseJson((*found)->json));
  const bool same_owner = owners.front().uid == pool.meta.uid;
  if (same_owner && stored.value("data", Json::object()) == wanted["data"]) return Status::Ok();
  stored["data"] = wanted["data"];
  stored["metadata"]["ownerReferences"] = wanted["metadata"]["ownerReferences"];
  return api.Update(Kind::kConfigMap, kube::DumpJson(stored)).status();
}

}  // namespace kvfabric
