#include "trace/trace_request.h"

#include <string>

namespace kvfabric {
namespace {

bool AllFit(std::span<const TraceRequest> requests, std::uint64_t block_tokens) {
  return std::all_of(requests.begin(), requests.end(), [&](const TraceRequest& request) {
    return (request.input_length + block_tokens - 1) / block_tokens == request.block_ids.size();
  });
}

}  // namespace

Result<std::uint32_t> InferBlockTokens(std::span<const TraceRequest> requests) {
  constexpr std::uint32_t kLargest = 1U << 16U;
  for (const std::uint32_t usual : {512U, 1024U}) {
    if (AllFit(requests, usual)) return usual;
  }
  std::uint32_t found = 0;
  for (std::uint32_t tokens = 1; tokens <= kLargest; tokens *= 2) {
    if (!AllFit(requests, tokens)) continue;
    if (found != 0) {
      return InvalidArgument("block tokens: infer: both " + std::to_string(found) + " and " +
                             std::to_string(tokens) + " fit input_length and hash_ids");
    }
    found = tokens;
  }
  if (found != 0) return found;
  return InvalidArgument("block tokens: infer: no power of two up to " + std::to_string(kLargest) +
                         " gives each request as many blocks as it has hash_ids");
}

}  // namespace kvfabric
