#pragma once

// Memfd: one piece of the node's memory that a tenant's clients may map read-only. The owner's
// read-write mapping is made first, then the file is sealed against shrinking, growing, any later
// writable mapping and further seals; so a client can neither change a byte nor take it away.
//
// Shared between the arena and whoever sends its descriptor; closed and unmapped with the last
// reference. Immutable but for the bytes; any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/bytes.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class Memfd {
 public:
  // `id` is never used again in one agent run. RESOURCE_EXHAUSTED when there is no memory or no
  // descriptor left.
  static Result<std::shared_ptr<Memfd>> Create(std::uint64_t id, std::uint64_t size_bytes);
  ~Memfd();
  Memfd(const Memfd&) = delete;  // would unmap twice
  Memfd& operator=(const Memfd&) = delete;

  std::uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::byte* data() const { return data_; }

  // Makes every page present, so that no later write can fail for want of memory. Contents stay;
  // safe beside writers. RESOURCE_EXHAUSTED when the machine or cgroup has not got it.
  Status Prefault();

 private:
  Memfd(std::uint64_t id, UniqueFd fd, std::uint64_t size_bytes, std::byte* data);

  const std::uint64_t id_;
  const UniqueFd fd_;
  const std::uint64_t size_bytes_;
  std::byte* const data_;
};

using MemfdRef = std::shared_ptr<const Memfd>;

}  // namespace kvfabric
