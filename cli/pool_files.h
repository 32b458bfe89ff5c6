#pragma once

// The copies of pools that `up` keeps in the fabric's directory, so that verbs know the pools with
// the operator down. Functions; any thread.

#include <string>
#include <vector>

#include "cli/fabric_directory.h"
#include "cli/pool_yaml.h"
#include "common/status.h"

namespace kvfabric::cli {

// `namespace/name` of each pool, by name.
Result<std::vector<std::string>> PoolNames(const FabricDirectory& directory);
Status SavePoolFile(const FabricDirectory& directory, const std::string& pool,
                    const std::string& yaml);
// `pools` and those that earlier ones applied; of the same name the one in `pools`.
Result<std::vector<PoolDocument>> WithAppliedPools(const FabricDirectory& directory,
                                                   std::vector<PoolDocument> pools);
// `wanted` if it is there; the only pool when `wanted` is empty. NOT_FOUND names those there are.
Result<std::string> ChoosePool(const FabricDirectory& directory, const std::string& wanted);

}  // namespace kvfabric::cli
