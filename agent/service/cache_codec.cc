#include "agent/service/cache_codec.h"

#include <string>

#include "agent/cluster/request_keys.h"
#include "kvfabric/v1/cache.pb.h"

namespace kvfabric {

namespace {

constexpr int kMaxKeys = static_cast<int>(kMaxRequestKeys);
constexpr std::size_t kMaxFingerprintBytes = 4096;

const char* NameOf(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "";
    case MissReason::kNotFound:
      return "not_found";
    case MissReason::kLeaseBudget:
      return "lease_budget";
    case MissReason::kDeadline:
      return "deadline";
    case MissReason::kNoMap:
      return "no_map";
  }
  return "";
}

}  // namespace

Result<KeyRange> DecodeKeyRange(const v1::KeyRange& message) {
  if (message.keys_size() == 0 || message.keys_size() > kMaxKeys) {
    return InvalidArgument("range: " + std::to_string(message.keys_size()) +
                           " keys (must be 1 to " + std::to_string(kMaxKeys) + ")");
  }
  KeyRange range;
  range.first = message.first();
  range.keys.reserve(static_cast<std::size_t>(message.keys_size()));
  for (const std::string& key : message.keys()) {
    KVF_RETURN_IF_ERROR(ValidateKey(key));
    range.keys.push_back(key);
  }
  if (message.parent_key().size() > kMaxKeyBytes || message.run_tag().size() > kMaxKeyBytes) {
    return InvalidArgument("range: parent_key and run_tag must be at most " +
                           std::to_string(kMaxKeyBytes) + " bytes");
  }
  range.parent_key = message.parent_key();
  range.run_tag = message.run_tag();
  return range;
}

Result<Lane> DecodeLane(const v1::Lane& message) {
  if (message.group() > 0xFFFF || message.rank() > 0xFFFF) {
    return InvalidArgument("lane: group and rank must be at most 65535 (are " +
                           std::to_string(message.group()) + ", " + std::to_string(message.rank()) +
                           ")");
  }
  return Lane{static_cast<std::uint16_t>(message.group()),
              static_cast<std::uint16_t>(message.rank())};
}

Result<NamespaceRef> DecodeNamespace(const v1::Namespace& message, const std::string& tenant,
                                     Fabric& fabric) {
  if (message.pool().empty() || message.fingerprint().size() > kMaxFingerprintBytes) {
    return InvalidArgument("namespace: pool must be named, fingerprint at most " +
                           std::to_string(kMaxFingerprintBytes) + " bytes");
  }
  NamespaceKind kind = NamespaceKind::kChain;
  switch (message.kind()) {
    case v1::NAMESPACE_KIND_CHAIN:
      break;
    case v1::NAMESPACE_KIND_SINGLE:
      kind = NamespaceKind::kSingle;
      break;
    default:
      return InvalidArgument("namespace: unknown kind " + std::to_string(message.kind()));
  }
  return fabric.ResolveNamespace(message.pool(), tenant, message.fingerprint(), kind);
}

void EncodeLookup(const LookupAnswer& answer, v1::LookupReply& message) {
  message.set_hits(answer.hits);
  for (const bool found : answer.found) message.add_found(found);
  message.set_lease_id(answer.lease_id);
  message.set_lease_ms(static_cast<std::uint32_t>(answer.lease.count()));
  message.set_local(answer.local);
  message.set_peer(answer.peer);
  message.set_miss_reason(NameOf(answer.miss_reason));
}

void EncodePools(const std::vector<PoolStatAnswer>& pools, const std::string& only,
                 v1::StatReply& message) {
  for (const PoolStatAnswer& from : pools) {
    if (!only.empty() && from.pool_name != only) continue;
    if (!only.empty()) message.set_map_epoch(from.map_epoch);
    v1::PoolStat& to = *message.add_pools();
    to.set_pool(from.pool_name);
    to.set_capacity_bytes(from.engine.capacity_bytes);
    to.set_used_bytes(from.engine.used_bytes);
    to.set_blocks(from.engine.blocks);
    to.set_leased_bytes(from.leased_bytes);
    auto& counters = *to.mutable_counters();
    counters["puts"] = static_cast<double>(from.engine.puts);
    counters["already_exists"] = static_cast<double>(from.engine.already_exists);
    counters["no_space"] = static_cast<double>(from.engine.no_space);
    counters["evicted"] = static_cast<double>(from.engine.evicted);
    counters["spilled"] = static_cast<double>(from.engine.spilled);
    counters["deleted"] = static_cast<double>(from.engine.deleted);
    counters["pinned_bytes"] = static_cast<double>(from.engine.pinned_bytes);
    counters["transient_bytes"] = static_cast<double>(from.engine.transient_bytes);
  }
}

}  // namespace kvfabric
