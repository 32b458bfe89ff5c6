#pragma once

// PoolTable: the pools of this node by UID and by name. Owned by FabricNode; any thread; changed by
// ControlDesk only. A pool that was removed is kept aside until nothing of it is under way.

#include <string>
#include <unordered_map>
#include <vector>

#include "agent/cluster/pool_node.h"
#include "common/mutex.h"

namespace kvfabric {

class PoolTable {
 public:
  // Null when there is none.
  PoolRef Find(const std::string& uid) const EXCLUDES(mu_);
  PoolRef FindByName(const std::string& name) const EXCLUDES(mu_);
  std::vector<PoolRef> All() const EXCLUDES(mu_);

  void Insert(PoolRef pool) EXCLUDES(mu_);
  // The pool finds nobody any more; it is closed and set aside.
  void Retire(const std::string& uid) EXCLUDES(mu_);
  // Destroys the retired pools that nothing uses.
  void Reap() EXCLUDES(mu_);
  // Waits for what is under way, then destroys all pools. Peers' links must be closed.
  void Clear() EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unordered_map<std::string, PoolRef> by_uid_ GUARDED_BY(mu_);
  std::unordered_map<std::string, PoolRef> by_name_ GUARDED_BY(mu_);
  std::vector<PoolRef> retired_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
