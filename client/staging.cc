#include "client/staging.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <iterator>

namespace kvfabric {

namespace {
// Blocks start on cache lines' multiples so that copies do not split them.
constexpr std::uint64_t kStep = 256;
constexpr std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }
}  // namespace

Result<std::shared_ptr<Staging>> Staging::Create(std::uint64_t bytes) {
  const std::uint64_t size = RoundUp(bytes);
  if (size == 0) return InvalidArgument("staging: 0 bytes (must be at least one block)");
  UniqueFd fd(::memfd_create("kvfabric-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "staging: memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoStatus(errno, "staging: set size to " + std::to_string(size) + " bytes");
  }
  // The agent refuses memory that could shrink under its copy.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "staging: seal");
  }
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "staging: map");
  return std::shared_ptr<Staging>(new Staging(std::make_shared<const UniqueFd>(std::move(fd)),
                                              static_cast<std::byte*>(base), size));
}

Staging::Staging(std::shared_ptr<const UniqueFd> fd, std::byte* base, std::uint64_t size)
    : fd_(std::move(fd)), base_(base), size_(size) {
  free_.emplace(0, size);
}

Staging::~Staging() { ::munmap(base_, size_); }

std::shared_ptr<Staging::Region> Staging::Allocate(std::uint64_t bytes, Deadline deadline) {
  if (bytes > size_) return nullptr;
  const std::uint64_t want = RoundUp(bytes == 0 ? 1 : bytes);
  MutexLock lock(mu_);
  while (!closed_) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < want) continue;
      const std::uint64_t offset = it->first;
      const std::uint64_t left = it->second - want;
      free_.erase(it);
      if (left > 0) free_.emplace(offset + want, left);
      return std::make_shared<Region>(shared_from_this(), offset, want);
    }
    if (!freed_.WaitUntil(mu_, deadline.at())) return nullptr;
  }
  return nullptr;
}

void Staging::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  freed_.NotifyAll();
}

void Staging::Free(std::uint64_t offset, std::uint64_t bytes) {
  {
    MutexLock lock(mu_);
    auto it = free_.emplace(offset, bytes).first;
    if (const auto next = std::next(it);
        next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      if (const auto before = std::prev(it); before->first + before->second == it->first) {
        before->second += it->second;
        free_.erase(it);
      }
    }
  }
  freed_.NotifyAll();
}

}  // namespace kvfabric
