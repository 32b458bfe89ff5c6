#pragma once

// A block that a peer sends unasked by key (push, re-replication): its header is checked and put in
// our terms before memory is reserved for it. Any thread.

#include "agent/block/block_header.h"
#include "agent/cluster/pool_node.h"
#include "common/status.h"

namespace kvfabric {

// INVALID_ARGUMENT when id, key, lane and namespace do not belong together or not to this pool.
Result<BlockHeader> AcceptHeader(PoolNode& pool, BlockHeader header);

}  // namespace kvfabric
