#include "agent/cluster/agent_state.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <random>
#include <utility>

#include "agent/cluster/durable_file.h"
#include "common/bytes.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMaxStateBytes = 4096;

struct Persisted {
  std::string agent_uid;
  std::uint64_t boot_epoch = 0;
};

// RFC 4122 version 4 from the system's random source.
std::string MakeUid() {
  std::random_device random;
  std::array<std::byte, 16> bytes{};
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint32_t)) {
    StoreLe<std::uint32_t>(bytes.data() + at, random());
  }
  bytes[6] = (bytes[6] & std::byte{0x0F}) | std::byte{0x40};
  bytes[8] = (bytes[8] & std::byte{0x3F}) | std::byte{0x80};
  const std::string hex = ToHex(bytes);
  return hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" +
         hex.substr(16, 4) + "-" + hex.substr(20);
}

// Text: the UID, a blank, the boot epoch, a line feed.
Result<Persisted> Parse(const std::string& text, const std::filesystem::path& path) {
  Persisted persisted;
  const std::size_t blank = text.find(' ');
  const std::size_t end = text.find('\n');
  if (blank == std::string::npos || end == std::string::npos || blank == 0 || blank > end) {
    return DataLoss(path.string() + ": read: not an agent's identity; remove the file to start " +
                    "as a new agent");
  }
  persisted.agent_uid = text.substr(0, blank);
  const char* first = text.data() + blank + 1;
  const char* last = text.data() + end;
  const auto [stop, error] = std::from_chars(first, last, persisted.boot_epoch);
  if (error != std::errc() || stop != last) {
    return DataLoss(path.string() + ": read: boot epoch is no number; remove the file to start " +
                    "as a new agent");
  }
  return persisted;
}

}  // namespace

AgentState::AgentState(std::filesystem::path directory, UniqueFd lock, std::string agent_uid,
                       std::uint64_t boot_epoch)
    : directory_(std::move(directory)),
      lock_(std::move(lock)),
      agent_uid_(std::move(agent_uid)),
      boot_epoch_(boot_epoch) {}

Result<std::unique_ptr<AgentState>> AgentState::Open(std::filesystem::path directory,
                                                     const Clock& clock) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    return Unavailable("state directory " + directory.string() + ": create: " + failed.message());
  }
  const std::string lock_path = (directory / "agent.lock").string();
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return ErrnoStatus(errno, lock_path + ": open");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, lock_path + ": lock");
    return AlreadyExists("state directory " + directory.string() +
                         ": lock: another agent runs on it; stop that one or give this agent a "
                         "directory of its own");
  }
  const std::filesystem::path path = directory / "agent";
  KVF_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadWholeFile(path, kMaxStateBytes));
  Persisted state;
  if (text) {
    KVF_ASSIGN_OR_RETURN(state, Parse(*text, path));
  } else {
    state.agent_uid = MakeUid();
  }
  const auto unix_us = static_cast<std::uint64_t>(std::max<std::int64_t>(clock.UnixMicros(), 0));
  state.boot_epoch = std::max(state.boot_epoch + 1, unix_us);
  const std::string line = state.agent_uid + " " + std::to_string(state.boot_epoch) + "\n";
  KVF_RETURN_IF_ERROR(WriteFileDurably(path, AsBytes(line)));
  return std::unique_ptr<AgentState>(new AgentState(std::move(directory), std::move(lock),
                                                    std::move(state.agent_uid), state.boot_epoch));
}

}  // namespace kvfabric
