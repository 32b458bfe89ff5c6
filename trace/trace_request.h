#pragma once

// TraceRequest: one request of a trace, and how its prompt divides into blocks. Values; any thread.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace kvfabric {

struct TraceRequest {
  double timestamp_ms = 0;          // since the start of the trace; finite, >= 0
  std::uint32_t input_length = 0;   // tokens
  std::uint32_t output_length = 0;  // tokens
  // One id a block of the prompt, head first. An id stands for its block and all before it, so that
  // equal ids mean equal KV. The last block may be partial.
  std::vector<std::uint64_t> block_ids;
};

// Blocks that are full: the only ones looked up and put.
inline std::span<const std::uint64_t> FullBlocks(const TraceRequest& request,
                                                 std::uint32_t block_tokens) {
  const std::size_t full = request.input_length / block_tokens;
  return std::span(request.block_ids).first(std::min(full, request.block_ids.size()));
}

// Tokens a block, which the format does not say: the power of two with which every request has as
// many ids as blocks. Where a few requests fit several, 512 and then 1024 is taken.
Result<std::uint32_t> InferBlockTokens(std::span<const TraceRequest> requests);

}  // namespace kvfabric
