#pragma once

// PoolTable: the pools of this node by UID and by name. Owned by FabricNode; any thread; changed by
// ControlDesk only. A pool that was removed is kept aside until nothing of it is under way.

#include <string>
#include <unordered_map>
#include <vector>

#include "agent/cluster/gate.h"
#include "agent/cluster/pool_node.h"
#include "common/mutex.h"

namespace kvfabric {

class PoolTable {
 public:
  // Null when there is none.
  PoolRef Find(const std::string& uid) const EXCLUDES(mu_);
  PoolRef FindByName(const std::string& name) const EXCLUDES(mu_);
  std::vector<PoolRef> All() const EXCLUDES(mu_);

  void Insert(PoolRef made) EXCLUDES(mu_);
  // The pool finds nobody any more; it is closed and set aside.
  void Retire(const std::string& uid) EXCLUDES(mu_);
  // Destroys the retired pools that nothing uses.
  void Reap() EXCLUDES(mu_);
  // Waits for what is under way, then destroys all pools; returns when the last is gone, also where
  // a call that has just ended held it a moment longer. Peers' links must be closed. Once, last.
  void Clear() EXCLUDES(mu_);

 private:
  Gate alive_;  // a pass for each pool, until it is destroyed
  mutable Mutex mu_;
  std::unordered_map<std::string, PoolRef> by_uid_ GUARDED_BY(mu_);
  std::unordered_map<std::string, PoolRef> by_name_ GUARDED_BY(mu_);
  std::vector<PoolRef> retired_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
