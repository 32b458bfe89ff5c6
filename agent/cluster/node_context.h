#pragma once

// NodeContext: what all pools of this node share. Made and owned by FabricNode; everything in it
// outlives every PoolNode. Constant after construction.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/cluster/namespace_table.h"
#include "agent/cluster/node_names.h"
#include "agent/cluster/peer_set.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/remote_lease.h"
#include "agent/engine/cache_engine.h"
#include "agent/engine/lease_table.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/timer.h"

namespace kvfabric {

struct NodeContext {
  const Clock* clock = nullptr;
  Timer* timer = nullptr;
  Executor* background = nullptr;  // announcements, snapshots, replication, spill, drain
  Executor* copy = nullptr;        // copying and hashing of what clients put
  MetricsRegistry* metrics = nullptr;
  PeerSet* peers = nullptr;
  NodeNames* names = nullptr;
  NamespaceTable* namespaces = nullptr;
  LeaseTable* leases = nullptr;
  RemoteLeaseBook* remote_leases = nullptr;
  PoolRouting::Self self;
  std::uint64_t boot_epoch = 0;
  std::size_t directory_bytes = std::size_t{256} << 20U;  // per pool
  std::function<Result<std::unique_ptr<CacheEngine>>(CacheEngine::Options)> make_engine;
  // Takes `peer`'s map of that pool if it is higher; calls back in any case, by the deadline.
  std::function<void(const std::string& pool_uid, NodeIndex peer, Deadline deadline,
                     std::function<void()> done)>
      refresh_map;
};

}  // namespace kvfabric
