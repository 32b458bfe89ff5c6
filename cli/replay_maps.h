#pragma once

// MapWatch: collects the maps that a pool has during a replay, by asking the API some times a
// second on a thread of its own. With the operator down it keeps trying and sees nothing.
//
// Owned by the replay verb; Start once, Stop once. Bound: kMaxMaps; beyond it the newest replaces
// the last, so first and last stay true.

#include <string>
#include <thread>
#include <vector>

#include "cli/fabric_directory.h"
#include "common/mutex.h"
#include "placement/shard_map.h"

namespace kvfabric::cli {

class MapWatch {
 public:
  static constexpr std::size_t kMaxMaps = 512;

  MapWatch(const FabricDirectory& directory, std::string pool)
      : directory_(directory), pool_(std::move(pool)) {}
  ~MapWatch();
  MapWatch(const MapWatch&) = delete;  // owns a thread
  MapWatch& operator=(const MapWatch&) = delete;

  void Start();
  // The maps seen, oldest first; looks once more.
  std::vector<ShardMap> Stop() EXCLUDES(mu_);
  // Whether the operator says that the newest map is where it is to be: every agent has it and no
  // slot is on its way. False while the operator is not asked.
  bool settled() const EXCLUDES(mu_);

 private:
  void Watch() EXCLUDES(mu_);
  void Look() EXCLUDES(mu_);

  const FabricDirectory& directory_;  // borrowed; outlives this
  const std::string pool_;
  std::thread thread_;
  mutable Mutex mu_;
  CondVar stop_asked_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool settled_ GUARDED_BY(mu_) = false;
  std::vector<ShardMap> maps_ GUARDED_BY(mu_);
};

}  // namespace kvfabric::cli
