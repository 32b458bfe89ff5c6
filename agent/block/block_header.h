#pragma once

// Namespace and BlockHeader: everything about a block but its bytes. A header travels with every
// put, fetch, spill and replica and is compared on every read. Values; any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/block_key.h"

namespace kvfabric {

// Interned per agent (one object per digest) and shared by all headers that name it.
struct Namespace {
  std::string pool_uid;
  std::string tenant;
  NamespaceKind kind = NamespaceKind::kChain;
  NamespaceDigest digest;
};
using NamespaceRef = std::shared_ptr<const Namespace>;

struct BlockHeader {
  KeyId id;
  NamespaceRef ns;
  Lane lane;
  std::string key;  // full key, compared on every read
  // Chain only: id of the block before it in the same lane (none at depth 0).
  KeyId parent;
  std::uint32_t depth = 0;
  // Slot of its run tag (Chain) or key (Single) in the pool's slot space; fixed for a pool's life.
  std::uint32_t slot = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t checksum = 0;  // common/checksum.h
  std::string metadata;        // opaque to us, at most kMaxBlockMetadataBytes
  // Steady time of the holder that has it now; travels as an age.
  std::int64_t last_touch_us = 0;
  bool spilled_in = false;        // once spilled, never spilled again
  bool has_other_holder = false;  // goes before blocks without
};

// What a request names: keys [first, first + keys.size()) of a chain, or independent keys.
struct KeyRange {
  std::uint32_t first = 0;
  std::vector<std::string> keys;
  std::string parent_key;  // key at depth first - 1; empty when first = 0
  std::string run_tag;     // key at RunStart(first); empty = keys[0]
};

}  // namespace kvfabric
