#pragma once

// StagingMap: a client's staging memfd, mapped read-only. Accepted only when sealed against
// shrinking and growing and as long as announced, so that reading it can never fault. The client
// may still write it: whoever reads copies first and checks the copy.
//
// Shared by the connection and the puts under way; immutable; any thread.

#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class StagingMap {
 public:
  // INVALID_ARGUMENT says which seal or size is missing; RESOURCE_EXHAUSTED above `max_bytes`.
  static Result<std::shared_ptr<const StagingMap>> Create(UniqueFd fd, std::uint64_t size_bytes,
                                                          std::uint64_t max_bytes);
  ~StagingMap();
  StagingMap(const StagingMap&) = delete;  // would unmap twice
  StagingMap& operator=(const StagingMap&) = delete;

  std::uint64_t size_bytes() const { return bytes_.size(); }
  // False when [offset, offset + length) does not lie inside.
  bool Contains(std::uint64_t offset, std::uint64_t length) const {
    return offset <= bytes_.size() && length <= bytes_.size() - offset;
  }
  ByteSpan At(std::uint64_t offset, std::uint64_t length) const {
    return bytes_.subspan(offset, length);
  }

 private:
  explicit StagingMap(ByteSpan bytes) : bytes_(bytes) {}
  const ByteSpan bytes_;
};

}  // namespace kvfabric
