#pragma once

// ControlDesk applies what the control plane orders: pools and shard maps, fenced, kept on disk.
// Also takes a peer's map when that is higher, under the same fence.
//
// Owned by FabricNode; any thread; orders are serialised by one lock, held over the file writes (no
// data-path call takes it).

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/cluster/control_plane_port.h"
#include "agent/cluster/gate.h"
#include "agent/cluster/map_store.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/pool_table.h"
#include "common/mutex.h"

namespace kvfabric {

class ControlDesk {
 public:
  // All outlive this.
  ControlDesk(const NodeContext& context, PoolTable& pools, Gate& gate,
              std::filesystem::path state_directory);
  ControlDesk(const ControlDesk&) = delete;  // two would write the same files
  ControlDesk& operator=(const ControlDesk&) = delete;

  // Pools and maps of the last run. Faults are logged: the operator will send all anew.
  void Restore() EXCLUDES(mu_);
  Status ApplyPools(std::uint64_t term, std::vector<PoolSpecForAgent> pools) EXCLUDES(mu_);
  Status ApplyMap(std::string_view pool_uid, std::string_view shard_map) EXCLUDES(mu_);
  // Refused when below the term of the last orders.
  Status CheckTerm(std::uint64_t term) const EXCLUDES(mu_);
  // See NodeContext::refresh_map. At most kMaxRefreshes at a time per pool; more call back at once.
  void RefreshMap(const std::string& pool_uid, NodeIndex peer, Deadline deadline,
                  std::function<void()> done) EXCLUDES(refresh_mu_);

 private:
  static constexpr std::size_t kMaxRefreshes = 8;

  Status CheckPoolsFence(std::uint64_t term, const std::vector<PoolSpecForAgent>& pools)
      REQUIRES(mu_);
  Status ApplyPool(PoolSpecForAgent spec) REQUIRES(mu_);
  Status TakeMap(const PoolRef& pool, ShardMap map, bool save) REQUIRES(mu_);
  void UpdatePeers() REQUIRES(mu_);
  void FinishRefresh(const std::string& pool_uid) EXCLUDES(refresh_mu_);

  const NodeContext& context_;
  PoolTable& pools_;
  Gate& gate_;

  mutable Mutex mu_;
  MapStore store_ GUARDED_BY(mu_);
  std::uint64_t term_ GUARDED_BY(mu_) = 0;  // of the last pool list taken

  Mutex refresh_mu_;
  std::unordered_map<std::string, std::size_t> refreshing_ GUARDED_BY(refresh_mu_);
};

}  // namespace kvfabric
