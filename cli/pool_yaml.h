#pragma once

// The pools of a YAML file, checked with the operator's own schema before anything is started, and
// what `up` has to know of them. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvfabric::cli {

struct PoolDocument {
  std::string name;  // namespace/name; namespace `default` where none is written
  std::string json;  // as it goes to the API, without defaults
  std::uint64_t dram_bytes_per_node = 0;
  std::vector<std::string> tenants;  // that it names
};

// INVALID_ARGUMENT names every fault of every document: path, value, rule, what to write instead.
Result<std::vector<PoolDocument>> ReadPools(std::string_view yaml, std::string_view file);

// What fits into one memfd of an agent with this memory.
std::uint64_t LargestBlockBytes(std::uint64_t arena_bytes);

// Memory a node needs for these pools: 1.25 x capacities, and a memfd for each tenant.
std::uint64_t ArenaBytesFor(const std::vector<PoolDocument>& pools);

}  // namespace kvfabric::cli
