#pragma once

// Cache.Put and Cache.Get as bytes on the wire, without copying blocks into `bytes` fields: what
// is written and read here is valid protobuf (api/kvfabric/v1/cache.proto), so that generated
// clients of any language understand it. Pure functions; any thread.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"

namespace kvfabric {

struct PutWireLimits {
  std::size_t max_blocks = 4096;
  std::size_t max_head_bytes = std::size_t{4} << 20U;  // all but the blocks
  // Blocks that lie in several segments are gathered into memory of their own.
  std::size_t max_gathered_bytes = std::size_t{64} << 20U;
};

// A PutRequest. Blocks that lie in one segment stay there: the segments must outlive this.
struct PutWire {
  struct Block {
    std::uint64_t checksum = 0;
    std::string metadata;
    ByteSpan data;
  };
  std::string head;  // the message without its blocks, for the generated parser
  std::vector<Block> blocks;
  std::vector<std::unique_ptr<std::byte[]>> gathered;
  std::size_t gathered_bytes = 0;
};

// INVALID_ARGUMENT: not a PutRequest, or over a limit.
Result<PutWire> ParsePut(std::span<const ByteSpan> segments, const PutWireLimits& limits);

// The parts of a GetReply: the head, then for each block a prefix and, right behind it, its data.
std::string EncodeGetHead(std::uint64_t boot_epoch, std::uint64_t map_epoch);
std::string EncodeGetBlockPrefix(std::uint64_t checksum, std::string_view metadata,
                                 std::size_t data_bytes);
// A block that was not found; nothing follows it.
std::string EncodeGetMiss();

}  // namespace kvfabric
