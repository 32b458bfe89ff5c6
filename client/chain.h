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

  // INVALID_ARGUMENT when a key is not 1..512 bytes or there are more than 2^31 of them.
  static Result<Chain> Create(std::vector<std::string> keys);

  std::uint32_t size() const { return static_cast<std::uint32_t>(keys_.size()); }
  const std::string& key(std::uint32_t depth) const { return keys_[depth]; }

  // Keys [first, first + count), cut at the end. `views` holds the keys' views and must live as
  // long as the result.
  wire::KeyRangeView Range(std::uint32_t first, std::uint32_t count,
                           std::vector<std::string_view>& views) const;
  // How many keys from `first` on, at most `count`, one request can name.
  std::uint32_t Fitting(std::uint32_t first, std::uint32_t count) const;

 private:
  explicit Chain(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  std::vector<std::string> keys_;
};

}  // namespace kvfabric
