#include "client/chain.h"

#include <algorithm>

namespace kvfabric {

Result<Chain> Chain::Create(std::vector<std::string> keys) {
  for (const std::string& key : keys) KVF_RETURN_IF_ERROR(ValidateKey(key));
  return Chain(std::move(keys));
}

wire::KeyRangeView Chain::Range(std::uint32_t first, std::uint32_t count,
                                std::vector<std::string_view>& views) const {
  first = std::min(first, size());
  const std::uint32_t end = first + std::min(count, size() - first);
  views.assign(keys_.begin() + first, keys_.begin() + end);
  wire::KeyRangeView range;
  range.first = first;
  range.keys = views;
  if (first > 0) range.parent_key = keys_[first - 1];
  if (const std::uint32_t run = RunStart(first); run < first) range.run_tag = keys_[run];
  return range;
}

}  // namespace kvfabric
