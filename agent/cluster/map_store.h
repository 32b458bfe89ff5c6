#pragma once

// MapStore: the last pools and shard maps on disk, so that an agent that starts while the operator
// is down serves as before. MapFence: which map may replace which.
//
// Owned by FabricNode; calls are serialised by it (they write files). Files in the agent's state
// directory: `pools` (text, lines `name value`, checksum line last) and `map.UID` per pool (binary
// form of placement/shard_map_codec.h), each replaced atomically. A file that does not check is
// reported and treated as absent: the agent then waits for Control.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/control_plane_port.h"
#include "common/status.h"
#include "placement/shard_map.h"

namespace kvfabric {

// OK when `next` may replace `current` (null: anything may): same pool, neither term nor epoch
// lower; the same (term, epoch) only with the same contents. FAILED_PRECONDITION otherwise.
Status CheckMapFence(const ShardMap* current, const ShardMap& next);

struct StoredPools {
  std::uint64_t term = 0;  // of the last pool list taken
  std::vector<PoolSpecForAgent> pools;
};

// UIDs name files: 1..128 of [A-Za-z0-9._-], not starting with a dot.
Status ValidatePoolUid(const std::string& uid);

class MapStore {
 public:
  explicit MapStore(std::filesystem::path directory);

  Result<StoredPools> LoadPools() const;  // empty when none were saved
  Status SavePools(const StoredPools& stored);
  Result<std::optional<ShardMap>> LoadMap(const std::string& pool_uid) const;
  Status SaveMap(const ShardMap& map);
  Status RemoveMap(const std::string& pool_uid);

 private:
  std::filesystem::path PathOfMap(const std::string& pool_uid) const;

  const std::filesystem::path directory_;
};

}  // namespace kvfabric
