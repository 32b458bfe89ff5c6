#include "operator/controllers/pool_config.h"

#include <algorithm>

namespace kvfabric {

std::optional<AgentPoolConfig> ConfigFor(const Pool& pool) {
  const PoolSpec& spec = pool.spec;
  const TierSpec* dram = spec.Tier(TierType::kDram);
  if (!pool.faults.empty() || dram == nullptr) return std::nullopt;
  AgentPoolConfig out;
  out.uid = pool.meta.uid;
  out.name = pool.meta.name.ToString();
  out.generation = pool.meta.generation;
  out.dram_capacity_bytes = dram->capacity_bytes;
  out.high_watermark_percent = dram->high_watermark_percent;
  out.low_watermark_percent = dram->low_watermark_percent;
  out.clear_bulk = spec.security.transport == "Disabled";
  out.eviction_policy = "LRU";  // the only one built; Simplifications() and NotBuilt() say so
  out.slots = spec.sharding.slots;
  out.replicas = spec.sharding.replicas;
  out.acks_replicated = spec.sharding.acks_replicated;
  out.locality_spread = spec.sharding.locality_spread;
  for (const TenantSpec& tenant : spec.tenancy.tenants) {
    const auto quota = tenant.quota_bytes.find(dram->name);
    out.tenants.push_back({tenant.name, quota == tenant.quota_bytes.end() ? 0 : quota->second});
  }
  out.bandwidth_limit_bytes_per_s = spec.rebalance.bandwidth_limit_bytes_per_s;
  // At least one second: 0 would stand for the agent's own default.
  out.drain_timeout =
      std::max(std::chrono::seconds(1),
               std::chrono::duration_cast<std::chrono::seconds>(spec.rebalance.drain_timeout));
  out.lookup_deadline = spec.access.lookup_deadline;
  out.paused = spec.paused;
  return out;
}

}  // namespace kvfabric
