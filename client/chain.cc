#include "client/chain.h"

#include <algorithm>

namespace kvfabric {

namespace {
constexpr std::size_t kMaxKeys = std::size_t{1} << 31U;  // depths are below it on the wire
constexpr std::size_t kLengthField = 2;
}  // namespace

Result<Chain> Chain::Create(std::vector<std::string> keys) {
  if (keys.size() > kMaxKeys) {
    return InvalidArgument("chain: " + std::to_string(keys.size()) + " keys (limit " +
                           std::to_string(kMaxKeys) + ")");
  }
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

std::uint32_t Chain::Fitting(std::uint32_t first, std::uint32_t count, std::size_t lanes) const {
  first = std::min(first, size());
  const std::size_t most = std::min(wire::kMaxKeysPerRequest, kMaxRequestIds / lanes);
  count = std::min({count, size() - first, static_cast<std::uint32_t>(most)});
  std::size_t bytes = 0;
  for (std::uint32_t n = 0; n < count; ++n) {
    bytes += kLengthField + keys_[first + n].size();
    if (bytes > kRequestBytes) return n;
  }
  return count;
}

}  // namespace kvfabric
