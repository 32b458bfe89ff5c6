#pragma once

// Whether a node is about to leave, so that its blocks must move out, or only rests. Pure.
//
// Leaving: a cordon (where the pool says so), the annotation kvfabric.io/drain, and the taints by
// which autoscalers, spot interruption handlers and people say that the node ends. A node that is
// NotReady or unreachable leaves nothing: its slots are held for nodeLossGracePeriod. A node that
// the pool's placement no longer covers leaves too: another nodeSelector, or a NoExecute taint that
// the pool does not tolerate (a NoSchedule taint keeps newcomers away and evicts nobody, as in
// Kubernetes).

#include <string>

#include "operator/specs/cluster_objects.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

// Why the node leaves the pool, for people; "" = it stays.
std::string LeaveSignal(const PoolSpec& spec, const NodeFacts& node);
// May it become a member? Placement covers it and it does not leave.
bool MayJoin(const PoolSpec& spec, const NodeFacts& node);

}  // namespace kvfabric
