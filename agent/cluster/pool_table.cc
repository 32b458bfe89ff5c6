#include "agent/cluster/pool_table.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

PoolRef PoolTable::Find(const std::string& uid) const {
  MutexLock lock(mu_);
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? nullptr : found->second;
}

PoolRef PoolTable::FindByName(const std::string& name) const {
  MutexLock lock(mu_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<PoolRef> PoolTable::All() const {
  MutexLock lock(mu_);
  std::vector<PoolRef> pools;
  pools.reserve(by_uid_.size());
  for (const auto& [uid, pool] : by_uid_) pools.push_back(pool);
  return pools;
}

void PoolTable::Insert(PoolRef made) {
  PoolNode* const node = made.get();
  const PoolRef pool(node,
                     [made = std::move(made), pass = alive_.EnterShared()](PoolNode*) mutable {
                       made.reset();
                       pass.reset();  // after it
                     });
  MutexLock lock(mu_);
  by_name_[pool->name()] = pool;
  by_uid_[pool->uid()] = pool;
}

void PoolTable::Retire(const std::string& uid) {
  PoolRef pool;
  {
    MutexLock lock(mu_);
    const auto found = by_uid_.find(uid);
    if (found == by_uid_.end()) return;
    pool = std::move(found->second);
    by_uid_.erase(found);
    const auto named = by_name_.find(pool->name());
    if (named != by_name_.end() && named->second == pool) by_name_.erase(named);
    retired_.push_back(pool);
  }
  pool->Close();
}

void PoolTable::Reap() {
  std::vector<PoolRef> done;
  MutexLock lock(mu_);
  // Nobody can come by a new reference, so a count of one stays one.
  const auto first = std::partition(retired_.begin(), retired_.end(), [](const PoolRef& pool) {
    return pool.use_count() > 1 || !pool->TryRetire();
  });
  done.assign(std::make_move_iterator(first), std::make_move_iterator(retired_.end()));
  retired_.erase(first, retired_.end());
}

void PoolTable::Clear() {
  std::vector<PoolRef> pools = All();
  {
    MutexLock lock(mu_);
    pools.insert(pools.end(), retired_.begin(), retired_.end());
    by_uid_.clear();
    by_name_.clear();
    retired_.clear();
  }
  for (const PoolRef& pool : pools) pool->WaitIdle();
  pools.clear();
  alive_.CloseAndWait();
}

}  // namespace kvfabric
