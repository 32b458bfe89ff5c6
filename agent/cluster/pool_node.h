#pragma once

// PoolNode: one pool on this node: its engine, map, directory and what moves its blocks between
// nodes. A composition; the parts do the work.
//
// Owned by FabricNode through shared_ptr, which calls under way share; any thread. A pool that is
// gone is closed (blocks dropped, nothing new begins) and destroyed once nothing uses it. Order of
// destruction: engine first, as it calls the announcer and the spiller.

#include <atomic>
#include <memory>
#include <string>

#include "agent/cluster/announcer.h"
#include "agent/cluster/control_plane_port.h"
#include "agent/cluster/directory.h"
#include "agent/cluster/directory_feed.h"
#include "agent/cluster/drainer.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/locator.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_metrics.h"
#include "agent/cluster/pool_routing.h"
#include "agent/cluster/push_promises.h"
#include "agent/cluster/read_ring.h"
#include "agent/cluster/replica_repair.h"
#include "agent/cluster/replicator.h"
#include "agent/cluster/spiller.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

using SharedPoolSpec = std::shared_ptr<const PoolSpecForAgent>;

class PoolNode {
 public:
  // `context` outlives this.
  static Result<std::shared_ptr<PoolNode>> Create(PoolSpecForAgent spec,
                                                  const NodeContext& context);
  ~PoolNode();
  PoolNode(const PoolNode&) = delete;  // its parts point to each other
  PoolNode& operator=(const PoolNode&) = delete;

  // Capacity, watermarks, quotas, replicas and the like; uid, slots and policy must stay.
  Status Reconfigure(PoolSpecForAgent spec) EXCLUDES(spec_mu_);
  SharedPoolSpec spec() const EXCLUDES(spec_mu_);
  const std::string& uid() const { return uid_; }
  const std::string& name() const { return name_; }

  SharedRouting routing() const { return routing_.Get(); }
  // Fenced by the caller; calls are serialised by it.
  void SetRouting(SharedRouting routing);
  // Every 50 ms: what waits goes on; every second: levels and sweeping.
  void Tick();
  void OnPeerChanged(NodeIndex peer, bool up);
  // The pool is gone: drops its blocks.
  void Close();
  // True when nothing is under way; then it is closed for good.
  bool TryRetire() { return gate_.TryClose(); }
  void WaitIdle() { gate_.CloseAndWait(); }

  // Below the high watermark.
  std::uint64_t FreeBytes() const;
  // What peers are told with the keepalive.
  PoolColdness Coldness() const;
  PoolReport Report() const;

  const NodeContext& context() const { return context_; }
  CacheEngine& engine() { return *engine_; }
  const CacheEngine& engine() const { return *engine_; }
  Directory& directory() { return directory_; }
  DirectoryFeed& feed() { return feed_; }
  Announcer& announcer() { return announcer_; }
  Locator& locator() { return locator_; }
  PoolMetrics& metrics() { return metrics_; }
  ReadRing& read_ring() { return read_ring_; }
  Replicator& replicator() { return replicator_; }
  Drainer& drainer() { return drainer_; }
  const Drainer& drainer() const { return drainer_; }
  PushPromises& promises() { return promises_; }
  Gate& gate() { return gate_; }

 private:
  PoolNode(PoolSpecForAgent spec, const NodeContext& context);

  static CacheEngine::Options EngineOptions(const PoolSpecForAgent& spec);
  void SweepIfDue();
  void DropStaleEntries(const PoolRouting& before, const PoolRouting& now);
  void SetLimits(const PoolSpecForAgent& spec);

  // Constant after construction.
  const NodeContext& context_;
  const std::string uid_;
  const std::string name_;

  mutable Mutex spec_mu_;
  SharedPoolSpec spec_ GUARDED_BY(spec_mu_);

  // Provide their own synchronisation.
  Gate gate_;
  PoolMetrics metrics_;
  RoutingCell routing_;
  Directory directory_;
  DirectoryFeed feed_;
  Announcer announcer_;
  Locator locator_;
  ReadRing read_ring_;
  PushPromises promises_;
  Replicator replicator_;
  ReplicaRepair repair_;
  Spiller spiller_;
  Drainer drainer_;

  std::atomic<bool> ticking_{false};  // a tick is queued or runs; guards no data

  Mutex sweep_mu_;
  Clock::TimePoint sweep_at_ GUARDED_BY(sweep_mu_);
  bool sweep_foreign_ GUARDED_BY(sweep_mu_) = false;  // entries of others' slots may be here

  std::unique_ptr<CacheEngine> engine_;  // last: destroyed first
};

using PoolRef = std::shared_ptr<PoolNode>;

}  // namespace kvfabric
