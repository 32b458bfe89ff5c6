#include "cli/pool_yaml.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/fabric_directory.h"
#include "operator/kube/api_error.h"
#include "operator/kube/yaml.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMaxMemfdBytes = 64 * kMiB;
constexpr std::uint64_t kProbeBytes = kMiB;  // the self-test's own memfd

// One line a fault, each with the document it is in.
class FaultList {
 public:
  explicit FaultList(std::string_view file) : file_(file) {}
  void Add(const std::string& text) {
    text_ += (text_.empty() ? "" : "\n") + file_ + ": " + text;
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  Status ToStatus() const {
    return InvalidArgument(file_ + ": " + std::to_string(count_) +
                           (count_ == 1 ? " fault" : " faults") + ", nothing was started\n" +
                           text_);
  }

 private:
  const std::string file_;
  std::string text_;
  std::size_t count_ = 0;
};

// Fills in the namespace, as kubectl does from its context.
std::string WithNamespace(const std::string& json) {
  Json object = Json::parse(json, nullptr, false);
  if (!object.is_object() || !object["metadata"].is_object()) return json;
  if (!object["metadata"].contains("namespace")) object["metadata"]["namespace"] = "default";
  return object.dump();
}

void ReadDocument(const std::string& text, FaultList& faults, std::vector<PoolDocument>& pools) {
  PoolDocument pool;
  pool.json = WithNamespace(text);
  const Result<kube::Object> object = kube::ParseObject(kube::Kind::kPool, pool.json);
  if (!object.ok()) return faults.Add(object.status().message());
  pool.name = object->meta.name.ToString();
  const Result<Pool> decoded = DecodePool(*object);
  if (!decoded.ok()) return faults.Add(decoded.status().message());
  std::vector<kube::Cause> causes = decoded->faults;
  // What this version cannot do would only be refused later, with everything running.
  if (causes.empty()) causes = NotBuilt(decoded->spec);
  for (const kube::Cause& cause : causes) faults.Add(cause.field + ": " + cause.message);
  for (const TierSpec& tier : decoded->spec.tiers) {
    if (tier.type == TierType::kDram) pool.dram_bytes_per_node += tier.capacity_bytes;
  }
  for (const TenantSpec& tenant : decoded->spec.tenancy.tenants)
    pool.tenants.push_back(tenant.name);
  pools.push_back(std::move(pool));
}

}  // namespace

Result<std::vector<PoolDocument>> ReadPools(std::string_view yaml, std::string_view file) {
  const Result<std::vector<std::string>> documents = kube::YamlToJson(yaml);
  if (!documents.ok()) return documents.status().WithContext(file);
  FaultList faults(file);
  if (documents->empty()) faults.Add("is empty: write a KVCachePool, see examples/pool.yaml");
  std::vector<PoolDocument> pools;
  for (const std::string& document : *documents) ReadDocument(document, faults, pools);
  std::set<std::string> names;
  for (const PoolDocument& pool : pools) {
    if (!names.insert(pool.name).second)
      faults.Add("pool " + pool.name + " stands twice: keep one");
  }
  if (!faults.empty()) return faults.ToStatus();
  return pools;
}

std::uint64_t LargestBlockBytes(std::uint64_t arena_bytes) {
  return std::clamp(arena_bytes / 16, kMiB, kMaxMemfdBytes);
}

std::uint64_t ArenaBytesFor(const std::vector<PoolDocument>& pools) {
  std::uint64_t capacity = 0;
  std::set<std::string> tenants = {kDefaultTenant};
  for (const PoolDocument& pool : pools) {
    capacity += pool.dram_bytes_per_node;
    tenants.insert(pool.tenants.begin(), pool.tenants.end());
  }
  // The size of a memfd follows from the arena, and the arena from it.
  const std::uint64_t need = capacity + capacity / 4 + kProbeBytes;
  std::uint64_t memfd = kMaxMemfdBytes;
  std::uint64_t arena = 0;
  for (int round = 0; round < 8; ++round) {
    arena = need + tenants.size() * memfd;
    memfd = LargestBlockBytes(arena);
  }
  return (arena + kMiB - 1) / kMiB * kMiB;
}

}  // namespace kvfabric::cli
