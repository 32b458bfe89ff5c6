#pragma once

// Chain: the keys of one prompt's blocks, all of them from depth 0, so that every operation on a
// part of it can tell depth, parent and run tag. Immutable after construction; any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/block_key.h"
#include "common/status.h"
#include "transport/local_messages.h"

namespace kvfabric {

class Chain {
 public:
  // What the keys of one request, and what it says of each, may take together; the rest of a
  // frame's body is for its fixed fields.
  static constexpr std::size_t kRequestBytes = std::size_t{1000} << 10U;
  // Keys times lanes that an agent takes of one request; more it refuses as INVALID_ARGUMENT.
  static constexpr std::size_t kMaxRequestIds = 65'536;

  // INVALID_ARGUMENT when a key is not 1..512 bytes or there are more than 2^31 of them.
  static Result<Chain> Create(std::vector<std::string> keys);

  std::uint32_t size() const { return static_cast<std::uint32_t>(keys_.size()); }
  const std::string& key(std::uint32_t depth) const { return keys_[depth]; }

  // Keys [first, first + count), cut at the end. `views` holds the keys' views and must live as
  // long as the result.
  wire::KeyRangeView Range(std::uint32_t first, std::uint32_t count,
                           std::vector<std::string_view>& views) const;
  // How many keys from `first` on, at most `count`, one request can name in `lanes` (1..64) lanes.
  std::uint32_t Fitting(std::uint32_t first, std::uint32_t count, std::size_t lanes = 1) const;

 private:
  explicit Chain(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  std::vector<std::string> keys_;
};

}  // namespace kvfabric
