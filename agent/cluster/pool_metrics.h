#pragma once

// PoolMetrics: the cluster's counters for one pool, made once when the pool starts. Handles live as
// long as the registry; any thread.

#include <array>
#include <cstdint>
#include <string>

#include "agent/cluster/fabric.h"
#include "common/metrics.h"

namespace kvfabric {

struct PoolMetrics {
  PoolMetrics(MetricsRegistry& registry, const std::string& pool_name);

  // Look-ups, in blocks (keys of a request, whatever its lanes).
  Counter& lookup_blocks;
  Counter& hits_local;
  Counter& hits_peer;
  std::array<Counter*, 5> misses;  // by MissReason; misses[0] is null
  Counter& get_blocks_local;
  Counter& get_blocks_peer;
  Counter& get_bytes_peer;
  Counter& get_blocks_lost;  // leased at a peer, not delivered
  Counter& put_ok;
  Counter& put_already_exists;
  Counter& put_no_space;
  Counter& put_failed;
  // Directory and announcements.
  Counter& locates;
  Counter& handovers;
  Counter& announces;
  Counter& announced_keys;
  Counter& snapshots;
  Counter& resyncs;
  Counter& announce_repeats;
  Counter& stale_epochs;
  Counter& leases_refused;  // asked of us for a block that is not here
  Gauge& directory_entries;
  Gauge& directory_bytes;
  Gauge& map_epoch;
  // Bytes that move.
  Counter& spill_offered;
  Counter& spilled;
  Counter& spill_dropped;
  Counter& replicas;
  Counter& replicas_failed;
  Counter& rereplicated;
  Gauge& under_replicated;
  Counter& drain_moved;
  Counter& drain_dropped;
};

}  // namespace kvfabric
