#pragma once

// MappedMemory: the agent's memfds that this session has mapped read-only, by id.
//
// Owned by a session; any thread. A mapping lives as long as somebody reads from it; the agent is
// told that it is gone (`on_unmapped`) only when it really is.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "common/bytes.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class MappedMemory {
 public:
  // One mapped memfd. Destroyed by its last reader.
  class Mapping {
   public:
    Mapping(const std::byte* base, std::uint64_t size) : base_(base), size_(size) {}
    ~Mapping();
    Mapping(const Mapping&) = delete;  // would unmap twice
    Mapping& operator=(const Mapping&) = delete;

    // Empty when it does not lie inside.
    ByteSpan At(std::uint64_t offset, std::uint64_t bytes) const;

   private:
    friend class MappedMemory;
    const std::byte* const base_;
    const std::uint64_t size_;
    std::function<void()> on_unmapped_;  // set once, before the owner lets go
  };
  using Ref = std::shared_ptr<const Mapping>;

  // Refuses a memfd that is smaller than said or could shrink: reading it could end this process.
  Status Add(std::uint64_t id, std::uint64_t size_bytes, UniqueFd fd) EXCLUDES(mu_);
  Ref Find(std::uint64_t id) const EXCLUDES(mu_);
  // Forgets it; `on_unmapped` runs when the last reader lets go, here or on another thread.
  void Close(std::uint64_t id, std::function<void()> on_unmapped) EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Mapping>> mappings_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
