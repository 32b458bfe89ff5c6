#include "agent/service/staging_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace kvfabric {

Result<std::shared_ptr<const StagingMap>> StagingMap::Create(UniqueFd fd, std::uint64_t size_bytes,
                                                             std::uint64_t max_bytes) {
  if (size_bytes == 0 || size_bytes > max_bytes) {
    return ResourceExhausted("staging: map " + std::to_string(size_bytes) + " bytes (limit " +
                             std::to_string(max_bytes) + ")");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return InvalidArgument("staging: map: no memfd sealed with F_SEAL_SHRINK and F_SEAL_GROW");
  }
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "staging: look at");
  if (static_cast<std::uint64_t>(found.st_size) != size_bytes) {
    return InvalidArgument("staging: map: has " + std::to_string(found.st_size) +
                           " bytes, announced " + std::to_string(size_bytes));
  }
  void* const at = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "staging: map");
  return std::shared_ptr<const StagingMap>(
      new StagingMap(ByteSpan(static_cast<const std::byte*>(at), size_bytes)));
}

StagingMap::~StagingMap() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace kvfabric
