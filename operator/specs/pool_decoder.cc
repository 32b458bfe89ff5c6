// DecodePool: from an object that passed the schema to PoolSpec and PoolStatus.

#include <nlohmann/json.hpp>

#include "operator/kube/json.h"
#include "operator/specs/crd_schema.h"
#include "operator/specs/pool_spec.h"
#include "operator/specs/quantity.h"

namespace kvfabric {
namespace {

using kube::Find;
using kube::Json;
using kube::StringAt;

const Json& At(const Json& object, std::string_view key) {
  static const Json kNull;
  const Json* value = Find(object, key);
  return value == nullptr ? kNull : *value;
}
template <typename T>
T NumberAt(const Json& object, std::string_view key) {
  const Json& value = At(object, key);
  return value.is_number_integer() ? value.get<T>() : T{};
}
bool BoolAt(const Json& object, std::string_view key) {
  const Json& value = At(object, key);
  return value.is_boolean() && value.get<bool>();
}
std::uint64_t BytesOf(const Json& value) {
  return ParseQuantity(value.is_string() ? value.get<std::string>() : value.dump()).value_or(0);
}
std::chrono::milliseconds DurationAt(const Json& object, std::string_view key) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      ParseDuration(StringAt(object, key)).value_or(std::chrono::microseconds(0)));
}
std::vector<std::string> StringsAt(const Json& object, std::string_view key) {
  std::vector<std::string> out;
  for (const Json& value : At(object, key)) out.push_back(value.get<std::string>());
  return out;
}
std::map<std::string, std::string> StringMapAt(const Json& object, std::string_view key) {
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : At(object, key).items()) out[name] = value.get<std::string>();
  return out;
}

TierType TierTypeOf(const std::string& name) {
  for (const TierType type :
       {TierType::kGpu, TierType::kDram, TierType::kNvme, TierType::kObject}) {
    if (TierTypeName(type) == name) return type;
  }
  return TierType::kDram;
}

TierSpec DecodeTier(const Json& json) {
  TierSpec out;
  out.name = StringAt(json, "name");
  out.type = TierTypeOf(StringAt(json, "type"));
  out.capacity_bytes = BytesOf(At(json, "capacityPerNode"));
  out.high_watermark_percent = NumberAt<std::uint32_t>(json, "highWatermarkPercent");
  out.low_watermark_percent = NumberAt<std::uint32_t>(json, "lowWatermarkPercent");
  out.eviction_policy = StringAt(json, "evictionPolicy");
  out.drain = BoolAt(json, "drain");
  return out;
}

DomainSpec DecodeDomain(const Json& json) {
  DomainSpec out;
  out.models = StringsAt(json, "models");
  if (At(json, "blockTokens").is_number_integer()) {
    out.block_tokens = NumberAt<std::uint32_t>(json, "blockTokens");
  }
  out.hash_algorithm = StringAt(json, "hashAlgorithm");
  out.hash_seed = StringAt(json, "hashSeed");
  return out;
}

PlacementSpec DecodePlacement(const Json& json) {
  PlacementSpec out;
  out.node_selector = StringMapAt(json, "nodeSelector");
  for (const Json& toleration : At(json, "tolerations")) {
    std::string op = StringAt(toleration, "operator");
    if (op.empty()) op = "Equal";
    out.tolerations.push_back({StringAt(toleration, "key"), std::move(op),
                               StringAt(toleration, "value"), StringAt(toleration, "effect")});
  }
  out.min_nodes = NumberAt<std::uint32_t>(json, "minNodes");
  return out;
}

ShardingSpec DecodeSharding(const Json& json) {
  ShardingSpec out;
  out.slots = NumberAt<std::uint32_t>(json, "slots");
  out.replicas = NumberAt<std::uint32_t>(json, "replicas");
  out.acks_replicated = StringAt(json, "acks") == "Replicated";
  out.failure_domain_key = StringAt(json, "failureDomainKey");
  out.algorithm = StringAt(json, "algorithm");
  out.weighted_by_capacity = StringAt(json, "weighting") == "Capacity";
  out.locality_spread = StringAt(json, "locality") == "Spread";
  return out;
}

RebalanceSpec DecodeRebalance(const Json& json) {
  RebalanceSpec out;
  out.mode = StringAt(json, "mode");
  out.node_loss_grace = DurationAt(json, "nodeLossGracePeriod");
  out.join_warmup = DurationAt(json, "joinWarmup");
  out.join_ramp_percent = NumberAt<std::uint32_t>(json, "joinRampPercent");
  out.max_concurrent_migrations = NumberAt<std::uint32_t>(json, "maxConcurrentMigrations");
  out.bandwidth_limit_bytes_per_s = BytesOf(At(json, "bandwidthLimitPerNode"));
  out.data_movement = StringAt(json, "dataMovement");
  out.drain_on_cordon = BoolAt(json, "drainOnCordon");
  out.drain_timeout = DurationAt(json, "drainTimeout");
  return out;
}

TenancySpec DecodeTenancy(const Json& json) {
  TenancySpec out;
  out.mode = StringAt(json, "mode");
  out.require_salt = BoolAt(json, "requireSalt");
  for (const Json& tenant : At(json, "tenants")) {
    TenantSpec& spec = out.tenants.emplace_back();
    spec.name = StringAt(tenant, "name");
    spec.namespaces = StringsAt(tenant, "namespaces");
    for (const auto& [tier, amount] : At(tenant, "quota").items()) {
      spec.quota_bytes[tier] = BytesOf(amount);
    }
    spec.token_secret = StringAt(At(tenant, "tokenSecretRef"), "name");
    spec.token_key = StringAt(At(tenant, "tokenSecretRef"), "key");
  }
  return out;
}

std::optional<LabelSelector> DecodeSelector(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  LabelSelector out;
  out.match_labels = StringMapAt(json, "matchLabels");
  for (const Json& expression : At(json, "matchExpressions")) {
    out.match_expressions.push_back({StringAt(expression, "key"), StringAt(expression, "operator"),
                                     StringsAt(expression, "values")});
  }
  return out;
}

AccessSpec DecodeAccess(const Json& json) {
  AccessSpec out;
  out.pod_selector = DecodeSelector(At(json, "podSelector"));
  out.namespace_selector = DecodeSelector(At(json, "namespaceSelector"));
  out.injection = StringAt(json, "injection");
  out.wiring = StringAt(json, "wiring");
  out.connector = StringAt(json, "connector");
  out.fail_open = BoolAt(json, "failOpen");
  out.lookup_deadline = DurationAt(json, "lookupDeadline");
  if (!StringAt(json, "loadDeadline").empty()) out.load_deadline = DurationAt(json, "loadDeadline");
  return out;
}

PoolSpec DecodeSpec(const Json& json) {
  PoolSpec out;
  out.domain = DecodeDomain(At(json, "domain"));
  for (const Json& tier : At(json, "tiers")) out.tiers.push_back(DecodeTier(tier));
  out.codec = StringAt(json, "codec");
  out.allow_lossy = BoolAt(json, "allowLossy");
  out.placement = DecodePlacement(At(json, "placement"));
  out.sharding = DecodeSharding(At(json, "sharding"));
  out.rebalance = DecodeRebalance(At(json, "rebalance"));
  out.tenancy = DecodeTenancy(At(json, "tenancy"));
  const Json& security = At(json, "security");
  out.security = {StringAt(security, "transport"), StringAt(security, "encryptionAtRest"),
                  StringAt(At(security, "encryptionKeySecretRef"), "name")};
  out.access = DecodeAccess(At(json, "access"));
  const Json& events = At(json, "events");
  out.events = {BoolAt(events, "enabled"), StringAt(events, "schema"), StringAt(events, "identity"),
                StringAt(events, "nvmeMedium")};
  out.paused = BoolAt(json, "paused");
  return out;
}

ProposalStatus DecodeProposal(const Json& json) {
  return {StringAt(json, "id"),
          StringAt(json, "reason"),
          NumberAt<std::uint64_t>(json, "slots"),
          NumberAt<std::uint64_t>(json, "bytes"),
          NumberAt<std::uint64_t>(json, "etaSeconds"),
          StringAt(json, "createdAt"),
          BoolAt(json, "approved")};
}

PoolStatus DecodeStatus(const Json& json) {
  PoolStatus out;
  out.observed_generation = NumberAt<std::int64_t>(json, "observedGeneration");
  for (const Json& entry : At(json, "conditions")) {
    out.conditions.push_back({StringAt(entry, "type"),
                              kube::ParseConditionStatus(StringAt(entry, "status")),
                              StringAt(entry, "reason"), StringAt(entry, "message"),
                              StringAt(entry, "lastTransitionTime"),
                              NumberAt<std::int64_t>(entry, "observedGeneration")});
  }
  out.epoch = NumberAt<std::uint64_t>(json, "epoch");
  out.shard_map_name = StringAt(At(json, "shardMapRef"), "name");
  const Json& members = At(json, "members");
  const auto count = [](const Json& from, const char* key) {
    return NumberAt<std::uint32_t>(from, key);
  };
  out.members = {count(members, "desired"), count(members, "ready"), count(members, "recovering"),
                 count(members, "draining"), count(members, "lost")};
  const Json& slots = At(json, "slots");
  out.slots = {count(slots, "total"), count(slots, "assigned"), count(slots, "migrating"),
               count(slots, "underReplicated")};
  for (const Json& tier : At(json, "tiers")) {
    out.tiers.push_back({StringAt(tier, "name"), NumberAt<std::uint64_t>(tier, "totalBytes"),
                         NumberAt<std::uint64_t>(tier, "usedBytes"), StringAt(tier, "used"),
                         NumberAt<std::uint64_t>(tier, "blocks")});
  }
  out.hit_ratio = StringAt(json, "hitRatio");
  const Json& moves = At(json, "rebalance");
  out.rebalance = {StringAt(moves, "state"),
                   StringAt(moves, "reason"),
                   StringAt(moves, "startedAt"),
                   NumberAt<std::uint64_t>(moves, "slotsMoved"),
                   NumberAt<std::uint64_t>(moves, "slotsRemaining"),
                   NumberAt<std::uint64_t>(moves, "bytesMoved"),
                   DecodeProposal(At(moves, "proposal")),
                   StringAt(moves, "lastApproved")};
  const Json& loss = At(json, "lastNodeLoss");
  out.last_node_loss = {StringAt(loss, "node"), StringAt(loss, "at"), count(loss, "slotsLost"),
                        StringAt(loss, "recoveredAt")};
  for (const Json& node : At(json, "unstableNodes")) {
    out.unstable_nodes.push_back(
        {StringAt(node, "node"), count(node, "failures"), StringAt(node, "heldUntil")});
  }
  return out;
}

}  // namespace

std::string_view TierTypeName(TierType type) {
  switch (type) {
    case TierType::kGpu:
      return "GPU";
    case TierType::kDram:
      return "DRAM";
    case TierType::kNvme:
      return "NVMe";
    case TierType::kObject:
      break;
  }
  return "Object";
}

const TierSpec* PoolSpec::Tier(TierType type) const {
  for (const TierSpec& tier : tiers) {
    if (tier.type == type) return &tier;
  }
  return nullptr;
}

Result<Pool> DecodePool(const kube::Object& object) {
  Pool pool;
  pool.meta = object.meta;
  KVF_ASSIGN_OR_RETURN(const std::string checked,
                       CrdSchema::Of(kube::Kind::kPool).Check(object.json, nullptr, &pool.faults));
  KVF_ASSIGN_OR_RETURN(const Json root, kube::ParseJson(checked));
  if (!pool.faults.empty()) return pool;
  pool.spec = DecodeSpec(At(root, "spec"));
  pool.status = DecodeStatus(At(root, "status"));
  return pool;
}

}  // namespace kvfabric
