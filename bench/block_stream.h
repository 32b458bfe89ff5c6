#pragma once

// BlockStream: a trace as the simulators want it, its full blocks numbered from 0. Immutable after
// construction; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/block_key.h"
#include "trace/trace_reader.h"

namespace kvfabric {

class BlockStream {
 public:
  struct Request {
    // One microsecond a request later than in the trace: there, whole groups have one timestamp,
    // and to a policy requests must come one after the other, as they do to an agent.
    std::int64_t at_us = 0;
    std::span<const std::uint32_t> blocks;  // the full ones, head first
    std::uint64_t prompt_tokens = 0;
  };

  explicit BlockStream(const Trace& trace);

  std::size_t request_count() const { return requests_.size(); }
  Request request(std::size_t index) const;
  std::size_t distinct_blocks() const { return distinct_blocks_; }
  std::uint32_t block_tokens() const { return block_tokens_; }
  std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  std::size_t accesses() const { return blocks_.size(); }
  // That share of the distinct full blocks.
  std::size_t CapacityBlocks(double percent) const;

 private:
  struct Row {
    std::int64_t at_us;
    std::size_t first, count;
    std::uint64_t prompt_tokens;
  };
  std::vector<std::uint32_t> blocks_;  // of all requests, one after the other
  std::vector<Row> requests_;
  std::size_t distinct_blocks_ = 0;
  std::uint32_t block_tokens_ = 0;
  std::uint64_t prompt_tokens_ = 0;
};

// A uniform KeyId for a block number, as SHA-256 would give one.
KeyId SimulatedKeyId(std::uint32_t block);

// Contiguous-prefix hits, in tokens of all prompts.
struct HitCount {
  std::uint64_t hit_tokens = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t policy_calls = 0;  // blocks touched, inserted and evicted
  double seconds = 0;              // of the whole simulation

  double percent() const {
    return prompt_tokens == 0
               ? 0
               : 100.0 * static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

}  // namespace kvfabric
