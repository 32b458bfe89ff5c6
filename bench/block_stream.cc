#include "bench/block_stream.h"

#include <cmath>
#include <unordered_map>

namespace kvfabric {

BlockStream::BlockStream(const Trace& trace) : block_tokens_(trace.block_tokens) {
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  requests_.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    const auto ids = FullBlocks(request, block_tokens_);
    const auto ordinal = static_cast<std::int64_t>(requests_.size());
    requests_.push_back({.at_us = std::llround(request.timestamp_ms * 1000.0) + ordinal,
                         .first = blocks_.size(),
                         .count = ids.size(),
                         .prompt_tokens = request.input_length});
    prompt_tokens_ += request.input_length;
    for (const std::uint64_t id : ids) {
      const auto next = static_cast<std::uint32_t>(numbers.size());
      blocks_.push_back(numbers.try_emplace(id, next).first->second);
    }
  }
  distinct_blocks_ = numbers.size();
}

BlockStream::Request BlockStream::request(std::size_t index) const {
  const Row& row = requests_[index];
  return {.at_us = row.at_us,
          .blocks = std::span(blocks_).subspan(row.first, row.count),
          .prompt_tokens = row.prompt_tokens};
}

std::size_t BlockStream::CapacityBlocks(double percent) const {
  return static_cast<std::size_t>(
      std::llround(static_cast<double>(distinct_blocks_) * percent / 100.0));
}

KeyId SimulatedKeyId(std::uint32_t block) {
  KeyId id;
  std::uint64_t x = block;
  for (std::size_t half = 0; half < 2; ++half) {
    x += 0x9E3779B97F4A7C15ULL;
    std::uint64_t mixed = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBULL;
    StoreLe(id.bytes.data() + 8 * half, mixed ^ (mixed >> 31U));
  }
  return id;
}

}  // namespace kvfabric
