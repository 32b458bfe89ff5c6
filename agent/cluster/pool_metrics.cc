#include "agent/cluster/pool_metrics.h"

#include <utility>

namespace kvfabric {

namespace {

// Shortens the initialiser below: every metric carries the pool.
class Maker {
 public:
  Maker(MetricsRegistry& registry, const std::string& pool) : registry_(registry), pool_(pool) {}

  Counter& Count(const char* name, const char* help, MetricLabels labels = {}) const {
    labels["pool"] = pool_;
    return registry_.GetCounter(std::string("kvfabric_cluster_") + name, help, std::move(labels));
  }
  Gauge& Level(const char* name, const char* help) const {
    return registry_.GetGauge(std::string("kvfabric_cluster_") + name, help, {{"pool", pool_}});
  }

 private:
  MetricsRegistry& registry_;
  const std::string& pool_;
};

constexpr const char* kHits = "Blocks that a look-up promised, by where they are.";
constexpr const char* kMisses = "Blocks that a look-up did not promise, by reason.";
constexpr const char* kGets = "Blocks read, by where they came from.";
constexpr const char* kPuts = "Blocks put, by result.";

}  // namespace

PoolMetrics::PoolMetrics(MetricsRegistry& registry, const std::string& pool_name)
    : lookup_blocks(Maker(registry, pool_name)
                        .Count("lookup_blocks_total", "Blocks that look-ups asked for.")),
      hits_local(Maker(registry, pool_name).Count("hit_blocks_total", kHits, {{"place", "local"}})),
      hits_peer(Maker(registry, pool_name).Count("hit_blocks_total", kHits, {{"place", "peer"}})),
      misses{},
      get_blocks_local(
          Maker(registry, pool_name).Count("get_blocks_total", kGets, {{"place", "local"}})),
      get_blocks_peer(
          Maker(registry, pool_name).Count("get_blocks_total", kGets, {{"place", "peer"}})),
      get_bytes_peer(Maker(registry, pool_name)
                         .Count("fetched_bytes_total", "Bytes fetched from peers for readers.")),
      get_blocks_lost(
          Maker(registry, pool_name)
              .Count("get_lost_blocks_total", "Blocks leased at a peer that it did not deliver.")),
      put_ok(Maker(registry, pool_name).Count("put_blocks_total", kPuts, {{"result", "ok"}})),
      put_already_exists(Maker(registry, pool_name)
                             .Count("put_blocks_total", kPuts, {{"result", "already_exists"}})),
      put_no_space(
          Maker(registry, pool_name).Count("put_blocks_total", kPuts, {{"result", "no_space"}})),
      put_failed(
          Maker(registry, pool_name).Count("put_blocks_total", kPuts, {{"result", "failed"}})),
      locates(Maker(registry, pool_name)
                  .Count("locate_messages_total", "Messages that asked slot owners for holders.")),
      handovers(Maker(registry, pool_name)
                    .Count("handover_keys_total", "Keys asked of a slot's previous owner.")),
      announces(Maker(registry, pool_name)
                    .Count("announce_messages_total", "Announcements sent to slot owners.")),
      announced_keys(Maker(registry, pool_name)
                         .Count("announced_keys_total", "Directory changes taken from holders.")),
      snapshots(Maker(registry, pool_name)
                    .Count("announce_snapshots_total", "Snapshots sent to slot owners.")),
      resyncs(Maker(registry, pool_name)
                  .Count("announce_gaps_total", "Sequence gaps that made a holder send anew.")),
      announce_repeats(
          Maker(registry, pool_name).Count("announce_repeats_total", "Announcements seen before.")),
      stale_epochs(Maker(registry, pool_name)
                       .Count("stale_epochs_total", "Times a peer had a newer map than we.")),
      leases_refused(
          Maker(registry, pool_name)
              .Count("lease_refusals_total", "Leases peers asked for blocks that are not here.")),
      directory_entries(
          Maker(registry, pool_name).Level("directory_entries", "Blocks known by the directory.")),
      directory_bytes(
          Maker(registry, pool_name).Level("directory_bytes", "Memory of the directory.")),
      map_epoch(Maker(registry, pool_name).Level("map_epoch", "Epoch of the applied shard map.")),
      spill_offered(Maker(registry, pool_name)
                        .Count("spill_offered_blocks_total", "Evicted blocks offered to a peer.")),
      spilled(Maker(registry, pool_name)
                  .Count("spilled_blocks_total", "Evicted blocks that a peer took.")),
      spill_dropped(
          Maker(registry, pool_name)
              .Count("spill_dropped_blocks_total", "Evicted blocks to spill that were dropped.")),
      replicas(Maker(registry, pool_name)
                   .Count("replica_blocks_total", "Copies that peers took of blocks put here.")),
      replicas_failed(
          Maker(registry, pool_name)
              .Count("replica_failures_total", "Copies that no peer took when they were made.")),
      rereplicated(Maker(registry, pool_name)
                       .Count("rereplicated_blocks_total", "Copies made after a node was lost.")),
      under_replicated(Maker(registry, pool_name)
                           .Level("under_replicated_blocks", "Blocks that wait for a copy.")),
      drain_moved(Maker(registry, pool_name)
                      .Count("drain_moved_blocks_total", "Blocks moved out by a drain.")),
      drain_dropped(Maker(registry, pool_name)
                        .Count("drain_dropped_blocks_total", "Blocks a drain gave up.")) {
  const Maker maker(registry, pool_name);
  constexpr std::array<const char*, 5> kReasons{"", "not_found", "lease_budget", "deadline",
                                                "no_map"};
  for (std::size_t reason = 1; reason < kReasons.size(); ++reason) {
    misses[reason] = &maker.Count("miss_blocks_total", kMisses, {{"reason", kReasons[reason]}});
  }
}

}  // namespace kvfabric
