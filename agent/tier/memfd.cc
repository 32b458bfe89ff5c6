#include "agent/tier/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

namespace kvfabric {

namespace {

// Newer than the headers of Debian 12.
constexpr unsigned kMfdNoexecSeal = 0x0008;
#ifdef MADV_POPULATE_WRITE
constexpr int kMadvPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kMadvPopulateWrite = 23;
#endif
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr std::uint64_t kPageBytes = 4096;

UniqueFd OpenMemfd() {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create("kvfabric", flags | kMfdNoexecSeal);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("kvfabric", flags);  // before Linux 6.3
  return UniqueFd(fd);
}

Status Failed(std::uint64_t size_bytes, const char* call, int errno_value) {
  const std::string action =
      "memfd of " + std::to_string(size_bytes) + " bytes: " + std::string(call);
  const Status status = ErrnoStatus(errno_value, action);
  return ResourceExhausted(status.message());
}

}  // namespace

Result<std::shared_ptr<Memfd>> Memfd::Create(std::uint64_t id, std::uint64_t size_bytes) {
  UniqueFd fd = OpenMemfd();
  if (!fd) return Failed(size_bytes, "create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return Failed(size_bytes, "set size", errno);
  }
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Failed(size_bytes, "map", errno);
  std::shared_ptr<Memfd> memfd(
      new Memfd(id, std::move(fd), size_bytes, static_cast<std::byte*>(data)));
  if (::fcntl(memfd->fd(), F_ADD_SEALS, kSeals) != 0) return Failed(size_bytes, "seal", errno);
  return memfd;
}

Memfd::Memfd(std::uint64_t id, UniqueFd fd, std::uint64_t size_bytes, std::byte* data)
    : id_(id), fd_(std::move(fd)), size_bytes_(size_bytes), data_(data) {}

Memfd::~Memfd() { ::munmap(data_, size_bytes_); }

Status Memfd::Prefault() {
  if (::madvise(data_, size_bytes_, kMadvPopulateWrite) == 0) return Status::Ok();
  if (errno != EINVAL) return Failed(size_bytes_, "prefault", errno);
  // Before Linux 5.14: an atomic write of nothing to each page, which cannot disturb a writer.
  for (std::uint64_t at = 0; at < size_bytes_; at += kPageBytes) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + at), 0, __ATOMIC_RELAXED);
  }
  return Status::Ok();
}

}  // namespace kvfabric
