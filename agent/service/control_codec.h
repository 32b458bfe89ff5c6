#pragma once

// Control messages as protobuf to and from the port's plain structs. Any thread.

#include <vector>

#include "agent/cluster/control_plane_port.h"
#include "common/status.h"

namespace kvfabric::v1 {
class Heartbeat;
class PoolSet;
}  // namespace kvfabric::v1

namespace kvfabric {

// INVALID_ARGUMENT names the pool and the field that no agent can have.
Result<std::vector<PoolSpecForAgent>> DecodePoolSet(const v1::PoolSet& message);
void EncodeReports(const std::vector<PoolReport>& pools, const DrainReport& drain,
                   v1::Heartbeat& message);

}  // namespace kvfabric
