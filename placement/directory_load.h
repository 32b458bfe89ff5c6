#pragma once

// DirectoryLoad: how evenly a shard map spreads the directory of a stream of chains.
//
// A directory entry of a block lives at the owners of its run's slot; the first owner answers for
// it. This counts, for each member, the entries (distinct blocks) and the look-ups (blocks asked
// for, repeats included) of which it is first owner. Blocks are named by 64-bit ids that stand for
// the block and all before it; the key is the id in 8 bytes big-endian.
//
// Owned by its caller; one thread. Memory: one hash-set entry per distinct block.

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "placement/shard_map.h"

namespace kvfabric {

class DirectoryLoad {
 public:
  explicit DirectoryLoad(const ShardMap& map);  // borrowed, outlives this

  // One request: the ids of its full blocks, from depth 0.
  void AddChain(std::span<const std::uint64_t> block_ids);

  const std::vector<std::uint64_t>& entries() const { return entries_; }
  const std::vector<std::uint64_t>& lookups() const { return lookups_; }
  std::uint64_t distinct_blocks() const { return seen_.size(); }

  // Largest over mean of the members that may own slots; 0 when nothing was counted.
  double EntriesMaxOverMean() const { return MaxOverMean(entries_); }
  double LookupsMaxOverMean() const { return MaxOverMean(lookups_); }

 private:
  double MaxOverMean(const std::vector<std::uint64_t>& counts) const;

  const ShardMap& map_;
  std::vector<std::uint64_t> entries_;  // by member
  std::vector<std::uint64_t> lookups_;
  std::unordered_set<std::uint64_t> seen_;
};

}  // namespace kvfabric
