#include "client/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace kvfabric {

MappedMemory::Mapping::~Mapping() {
  // munmap takes a pointer to mutable memory, though this mapping never was.
  ::munmap(const_cast<std::byte*>(base_), size_);
  if (on_unmapped_) on_unmapped_();
}

ByteSpan MappedMemory::Mapping::At(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return {};
  return {base_ + offset, bytes};
}

Status MappedMemory::Add(std::uint64_t id, std::uint64_t size_bytes, UniqueFd fd) {
  const std::string name = "memfd " + std::to_string(id);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, name + ": fstat");
  if (size_bytes == 0 || static_cast<std::uint64_t>(info.st_size) < size_bytes) {
    return InvalidArgument(name + ": is " + std::to_string(info.st_size) +
                           " bytes, announced were " + std::to_string(size_bytes));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument(name + ": is not sealed against shrinking");
  }
  void* base = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, name + ": map");
  auto mapping = std::make_shared<Mapping>(static_cast<const std::byte*>(base), size_bytes);
  MutexLock lock(mu_);
  mappings_[id].swap(mapping);
  return Status::Ok();
}

MappedMemory::Ref MappedMemory::Find(std::uint64_t id) const {
  MutexLock lock(mu_);
  const auto found = mappings_.find(id);
  return found == mappings_.end() ? nullptr : found->second;
}

void MappedMemory::Close(std::uint64_t id, std::function<void()> on_unmapped) {
  std::shared_ptr<Mapping> mapping;
  {
    MutexLock lock(mu_);
    const auto found = mappings_.find(id);
    if (found != mappings_.end()) {
      mapping = std::move(found->second);
      mappings_.erase(found);
    }
  }
  if (mapping) {
    mapping->on_unmapped_ = std::move(on_unmapped);  // readers that still hold it only read bytes
  } else {
    on_unmapped();
  }
}

}  // namespace kvfabric
