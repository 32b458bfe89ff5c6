#pragma once

// What of a change of a pool's status is worth an Event. Pure: a transition gives its Events once,
// a status that stays as it is gives none.

#include <vector>

#include "operator/kube/event_recorder.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

std::vector<kube::EventText> EventsOf(const PoolStatus& before, const PoolStatus& after);

}  // namespace kvfabric
