#pragma once

// What `kubectl get` shows: objects as a meta.k8s.io/v1 Table with the printer columns of our
// CRDs. Pure; any thread.

#include <cstdint>
#include <string>

#include "operator/kube/kube_api.h"

namespace kvfabric {

// JSON of the Table. Kinds without columns of ours show name and age. `now_unix_us` makes ages.
std::string PrinterTable(kube::Kind kind, const kube::ObjectList& list, std::int64_t now_unix_us);

// `90s`, `5m`, `3h`, `2d`: ages as kubectl writes them, in one unit.
std::string FormatAge(std::int64_t age_s);

}  // namespace kvfabric
