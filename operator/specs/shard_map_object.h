#pragma once

// KVCacheShardMap: placement's ShardMap as a Kubernetes object. Same name and namespace as its
// pool, owned by it.

#include <string>
#include <vector>

#include "operator/kube/object.h"
#include "placement/shard_map.h"

namespace kvfabric {

struct ShardMapObject {
  kube::ObjectMeta meta;
  ShardMap map;
};

// DATA_LOSS: the table does not match its checksum; INVALID_ARGUMENT: any other fault.
Result<ShardMapObject> DecodeShardMap(const kube::Object& object);

// To be created (`version` 0) or to replace the object of that resourceVersion.
Result<std::string> EncodeShardMap(const kube::ObjectMeta& pool, const ShardMap& map,
                                   std::uint64_t version);

}  // namespace kvfabric
