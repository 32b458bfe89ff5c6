#pragma once

// Which pool's proposal of moves a person means. Pure.

#include <string>
#include <vector>

#include "cli/fabric_view.h"

namespace kvfabric::cli {

// The pool whose proposal waits under this id; `id` empty: the only one that waits. Errors say what
// there is. The answer points into `pools`.
Result<const PoolView*> FindProposal(const std::vector<PoolView>& pools, const std::string& id);

}  // namespace kvfabric::cli
