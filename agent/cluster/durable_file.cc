#include "agent/cluster/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"

namespace kvfabric {

namespace {

Status WriteAll(int fd, ByteSpan contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written = ::write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(errno, path + ": write");
    contents = contents.subspan(static_cast<std::size_t>(written));
  }
  return Status::Ok();
}

Status SyncDirectory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, directory.string() + ": open");
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, directory.string() + ": fsync");
  return Status::Ok();
}

}  // namespace

Status WriteFileDurably(const std::filesystem::path& path, ByteSpan contents) {
  const std::string fresh = path.string() + ".tmp";
  {
    const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return ErrnoStatus(errno, fresh + ": open");
    KVF_RETURN_IF_ERROR(WriteAll(fd.get(), contents, fresh));
    if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, fresh + ": fsync");
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, fresh + ": rename into place");
  }
  return SyncDirectory(path.parent_path());
}

Result<std::optional<std::string>> ReadWholeFile(const std::filesystem::path& path,
                                                 std::size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::optional<std::string>();
  if (!fd) return ErrnoStatus(errno, path.string() + ": open");
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return ErrnoStatus(errno, path.string() + ": stat");
  if (about.st_size < 0 || static_cast<std::size_t>(about.st_size) > max_bytes) {
    return ResourceExhausted(path.string() + ": read: too long (" + std::to_string(about.st_size) +
                             " bytes, limit " + std::to_string(max_bytes) + ")");
  }
  std::string contents(static_cast<std::size_t>(about.st_size), '\0');
  std::size_t read = 0;
  while (read < contents.size()) {
    const ssize_t got = ::read(fd.get(), contents.data() + read, contents.size() - read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path.string() + ": read");
    if (got == 0) break;
    read += static_cast<std::size_t>(got);
  }
  contents.resize(read);
  return std::optional<std::string>(std::move(contents));
}

Status RemoveFileDurably(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, path.string() + ": remove");
  }
  return SyncDirectory(path.parent_path());
}

}  // namespace kvfabric
