#include "cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"

namespace kvfabric::cli {

Result<std::string> ReadFile(const std::filesystem::path& file, std::size_t max_bytes) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, file.string() + ": open");
  std::string text;
  std::string piece(std::size_t{64} << 10U, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, file.string() + ": read");
    if (got == 0) return text;
    text.append(piece, 0, static_cast<std::size_t>(got));
    if (text.size() > max_bytes)
      return ResourceExhausted(file.string() + ": read: more than " + std::to_string(max_bytes) +
                               " bytes");
  }
}

Status WriteFileAtomically(const std::filesystem::path& file, std::string_view text, mode_t mode) {
  const std::string next = file.string() + ".new." + std::to_string(::getpid());
  {
    const UniqueFd fd(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd) return ErrnoStatus(errno, next + ": create");
    ::fchmod(fd.get(), mode);  // an old file of this name may have had another
    while (!text.empty()) {
      const ssize_t put = ::write(fd.get(), text.data(), text.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return ErrnoStatus(errno, next + ": write");
      text.remove_prefix(static_cast<std::size_t>(put));
    }
    if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, next + ": sync");
  }
  if (::rename(next.c_str(), file.c_str()) != 0)
    return ErrnoStatus(errno, file.string() + ": rename");
  return Status::Ok();
}

}  // namespace kvfabric::cli
