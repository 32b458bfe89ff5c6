#include "agent/service/control_codec.h"

#include <set>
#include <string>
#include <utility>

#include "kvfabric/v1/control.pb.h"

namespace kvfabric {

namespace {

Status CheckPool(const v1::PoolConfig& pool) {
  const std::string name = "pool " + pool.name() + " (uid " + pool.uid() + ")";
  if (pool.uid().empty() || pool.name().empty()) {
    return InvalidArgument(name + ": uid and name must not be empty");
  }
  if (pool.low_watermark_percent() == 0 || pool.high_watermark_percent() > 100 ||
      pool.low_watermark_percent() >= pool.high_watermark_percent()) {
    return InvalidArgument(name + ": watermarks must be 0 < low < high <= 100 (are " +
                           std::to_string(pool.low_watermark_percent()) + ", " +
                           std::to_string(pool.high_watermark_percent()) + ")");
  }
  const std::uint32_t slots = pool.slots();
  if (slots < 16'384 || (slots & (slots - 1)) != 0) {
    return InvalidArgument(name + ": slots must be 16384 x 2^k (is " + std::to_string(slots) + ")");
  }
  if (pool.replicas() < 1 || pool.replicas() > 3) {
    return InvalidArgument(name + ": replicas must be 1 to 3 (is " +
                           std::to_string(pool.replicas()) + ")");
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<PoolSpecForAgent>> DecodePoolSet(const v1::PoolSet& message) {
  std::vector<PoolSpecForAgent> pools;
  std::set<std::string> uids;
  for (const v1::PoolConfig& from : message.pools()) {
    KVF_RETURN_IF_ERROR(CheckPool(from));
    if (!uids.insert(from.uid()).second) {
      return InvalidArgument("pool " + from.name() + ": uid " + from.uid() + " stands twice");
    }
    PoolSpecForAgent to;
    to.uid = from.uid();
    to.name = from.name();
    to.generation = from.generation();
    to.dram_capacity_bytes = from.dram_capacity_bytes();
    to.high_watermark_percent = from.high_watermark_percent();
    to.low_watermark_percent = from.low_watermark_percent();
    if (!from.eviction_policy().empty()) to.eviction_policy = from.eviction_policy();
    to.slots = from.slots();
    to.replicas = from.replicas();
    to.acks_replicated = from.acks_replicated();
    to.locality_spread = from.locality_spread();
    for (const v1::TenantConfig& tenant : from.tenants()) {
      to.tenants.push_back({tenant.name(), tenant.dram_quota_bytes()});
    }
    to.bandwidth_limit_bytes_per_s = from.bandwidth_limit_bytes_per_s();
    if (from.drain_timeout_s() != 0)
      to.drain_timeout = std::chrono::seconds(from.drain_timeout_s());
    if (from.lookup_deadline_ms() != 0) {
      to.lookup_deadline = std::chrono::milliseconds(from.lookup_deadline_ms());
    }
    to.paused = from.paused();
    pools.push_back(std::move(to));
  }
  return pools;
}

void EncodeReports(const std::vector<PoolReport>& pools, const DrainReport& drain,
                   v1::Heartbeat& message) {
  for (const PoolReport& from : pools) {
    v1::PoolHeartbeat& to = *message.add_pools();
    to.set_uid(from.uid);
    to.set_applied_term(from.applied_term);
    to.set_applied_epoch(from.applied_epoch);
    to.set_applied_generation(from.applied_generation);
    to.set_capacity_bytes(from.capacity_bytes);
    to.set_used_bytes(from.used_bytes);
    to.set_blocks(from.blocks);
    to.set_hit_blocks(from.hit_blocks);
    to.set_lookup_blocks(from.lookup_blocks);
    to.set_under_replicated(from.under_replicated);
  }
  v1::DrainProgress& progress = *message.mutable_drain();
  progress.set_active(drain.active);
  progress.set_done(drain.done);
  progress.set_moved_blocks(drain.moved_blocks);
  progress.set_moved_bytes(drain.moved_bytes);
  progress.set_dropped_blocks(drain.dropped_blocks);
  progress.set_remaining_blocks(drain.remaining_blocks);
}

}  // namespace kvfabric
