#pragma once

// ControlPlanePort: what the operator may do to this agent and what the agent tells it. The
// Control service (agent/service) translates the stream's messages into these calls; FabricNode
// implements them.
//
// Owned by main; any thread may call. No call waits for peers. Every order is fenced by (pool
// UID, leader term, map epoch): an older one is refused with FAILED_PRECONDITION and a text that
// goes back to the operator as ControlUp.refused; nothing of a refused order is applied.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/cluster/peer_messages.h"
#include "agent/engine/cache_engine.h"
#include "common/status.h"

namespace kvfabric {

// One pool as api/kvfabric/v1/control.proto's PoolConfig has it.
struct PoolSpecForAgent {
  std::string uid;
  std::string name;  // "namespace/name"
  std::int64_t generation = 0;
  std::uint64_t dram_capacity_bytes = 0;
  std::uint32_t high_watermark_percent = 90;
  std::uint32_t low_watermark_percent = 80;
  std::string eviction_policy = "LRU";
  std::uint32_t slots = 16'384;
  std::uint32_t replicas = 1;
  bool acks_replicated = false;
  bool locality_spread = false;
  std::vector<TenantQuota> tenants;
  // Drain and re-replication; 0 = no limit.
  std::uint64_t bandwidth_limit_bytes_per_s = 0;
  std::chrono::seconds drain_timeout{300};
  std::chrono::milliseconds lookup_deadline{50};
  bool paused = false;  // no re-replication while set
};

struct PoolReport {
  std::string uid;
  std::string name;
  std::uint64_t applied_term = 0;
  std::uint64_t applied_epoch = 0;
  std::int64_t applied_generation = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t hit_blocks = 0;     // since boot
  std::uint64_t lookup_blocks = 0;  // since boot
  // Blocks that should have more copies and wait for one: fresh puts and re-replication.
  std::uint64_t under_replicated = 0;
};

struct DrainReport {
  bool active = false;
  bool done = false;
  std::uint64_t moved_blocks = 0;
  std::uint64_t moved_bytes = 0;
  std::uint64_t dropped_blocks = 0;
  std::uint64_t remaining_blocks = 0;
};

class ControlPlanePort {
 public:
  virtual ~ControlPlanePort() = default;

  virtual PeerIdentity identity() const = 0;

  // The whole list each time: a pool that is not in it is gone and its blocks are dropped. Pools
  // that fail to start are left out and named in the Status; the others are applied.
  virtual Status ApplyPools(std::uint64_t term, std::vector<PoolSpecForAgent> pools) = 0;
  // `shard_map` in placement's binary form; it names pool, term and epoch itself. Applying the
  // same map again is OK.
  virtual Status ApplyMap(std::string_view pool_uid, std::string_view shard_map) = 0;
  // 0 s = each pool's drain_timeout. Starting again while one runs only moves the deadline.
  virtual Status StartDrain(std::uint64_t term, std::chrono::seconds deadline) = 0;
  virtual Status StopDrain(std::uint64_t term) = 0;

  // For heartbeats.
  virtual std::vector<PoolReport> PoolReports() const = 0;
  virtual DrainReport DrainProgress() const = 0;
};

}  // namespace kvfabric
