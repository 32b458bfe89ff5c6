#pragma once

// Staging: the client's own memory, as a memfd that the agent maps read-only, in which blocks lie
// while the agent copies them into the fabric.
//
// One per session, because only a session's end tells that its agent will read no more: an agent
// that was stopped in the middle of a PUT could otherwise wake up and copy somebody else's bytes.
// For the same reason nothing is handed out after Close. Any thread. Regions are held by
// shared_ptr: by the caller, and by the call until it is answered.
//
// Over TCP the agent sees none of it: there it bounds what waits to be sent.

#include <cstdint>
#include <map>
#include <memory>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class Staging : public std::enable_shared_from_this<Staging> {
 public:
  // A piece of staging memory; given back when the last owner lets go.
  class Region {
   public:
    Region(std::shared_ptr<Staging> staging, std::uint64_t offset, std::uint64_t bytes)
        : staging_(std::move(staging)), offset_(offset), bytes_(bytes) {}
    ~Region() { staging_->Free(offset_, bytes_); }
    Region(const Region&) = delete;  // would free the bytes twice
    Region& operator=(const Region&) = delete;

    std::uint64_t offset() const { return offset_; }
    MutableByteSpan bytes() const { return {staging_->base_ + offset_, bytes_}; }

   private:
    const std::shared_ptr<Staging> staging_;
    const std::uint64_t offset_;
    const std::uint64_t bytes_;
  };

  static Result<std::shared_ptr<Staging>> Create(std::uint64_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;  // owns a mapping
  Staging& operator=(const Staging&) = delete;

  // Waits for room until the deadline; null when there was none, `bytes` is more than all, or
  // after Close.
  std::shared_ptr<Region> Allocate(std::uint64_t bytes, Deadline deadline) EXCLUDES(mu_);
  // The session is over: refuses all that wait or come.
  void Close() EXCLUDES(mu_);
  std::uint64_t size_bytes() const { return size_; }
  const std::shared_ptr<const UniqueFd>& fd() const { return fd_; }

 private:
  Staging(std::shared_ptr<const UniqueFd> fd, std::byte* base, std::uint64_t size);
  void Free(std::uint64_t offset, std::uint64_t bytes) EXCLUDES(mu_);

  const std::shared_ptr<const UniqueFd> fd_;
  std::byte* const base_;
  const std::uint64_t size_;

  Mutex mu_;
  CondVar freed_;
  bool closed_ GUARDED_BY(mu_) = false;
  std::map<std::uint64_t, std::uint64_t> free_ GUARDED_BY(mu_);  // offset -> bytes
};

}  // namespace kvfabric
