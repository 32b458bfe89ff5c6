#include "cli/replay_maps.h"

#include <chrono>

#include "cli/fabric_view.h"
#include "cli/local_fabric.h"
#include "common/clock.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

constexpr std::chrono::milliseconds kLookEvery{200};

}  // namespace

MapWatch::~MapWatch() {
  if (thread_.joinable()) Stop();
}

void MapWatch::Start() {
  Look();
  thread_ = std::thread([this] { Watch(); });
}

std::vector<ShardMap> MapWatch::Stop() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    stop_asked_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  Look();
  const MutexLock lock(mu_);
  return maps_;
}

bool MapWatch::settled() const {
  const MutexLock lock(mu_);
  return settled_;
}

void MapWatch::Watch() {
  for (;;) {
    {
      const MutexLock lock(mu_);
      const auto next = Clock::System().Now() + kLookEvery;
      while (!stopping_ && Clock::System().Now() < next) stop_asked_.WaitUntil(mu_, next);
      if (stopping_) return;
    }
    Look();
  }
}

void MapWatch::Look() {
  const auto api = ConnectApi(directory_);
  Result<std::vector<PoolView>> pools = api.ok() ? LoadPools(**api) : api.status();
  const MutexLock lock(mu_);
  settled_ = false;
  if (!pools.ok()) return;
  for (PoolView& pool : *pools) {
    if (pool.name != pool_ || !pool.map) continue;
    settled_ = pool.condition("ShardMapConverged") == kube::ConditionStatus::kTrue &&
               pool.condition("Progressing") != kube::ConditionStatus::kTrue;
    if (!maps_.empty() && maps_.back().epoch == pool.map->epoch) continue;
    if (maps_.size() >= kMaxMaps) maps_.pop_back();
    maps_.push_back(std::move(*pool.map));
  }
}

}  // namespace kvfabric::cli
