#include "agent/service/token_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "common/unique_fd.h"

namespace kvfabric {

namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kMaxTokenBytes = 4'096;

// Looks at every byte whatever it finds; only the length of the longer text shows in time.
bool EqualInConstantTime(std::string_view a, std::string_view b) {
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto other = static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
    difference =
        static_cast<unsigned char>(difference | (static_cast<unsigned char>(a[i]) ^ other));
  }
  return difference == 0;
}

std::string_view TakeWord(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kBlank));
  line.remove_prefix(word.size());
  return word;
}

std::int64_t Nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

TokenTable::TokenTable(std::string path, Loaded loaded)
    : path_(std::move(path)),
      entries_(std::make_shared<const std::vector<Entry>>(std::move(loaded.entries))),
      version_(loaded.version) {}

Result<std::unique_ptr<TokenTable>> TokenTable::Load(std::string path) {
  KVF_ASSIGN_OR_RETURN(Loaded loaded, Read(path));
  return std::unique_ptr<TokenTable>(new TokenTable(std::move(path), std::move(loaded)));
}

TokenTable::Version TokenTable::VersionOf(const struct stat& file) {
  return {.inode = file.st_ino,
          .modified_ns = Nanoseconds(file.st_mtim),
          .changed_ns = Nanoseconds(file.st_ctim),
          .bytes = file.st_size};
}

Result<TokenTable::Loaded> TokenTable::Read(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    const Status why = ErrnoStatus(errno, "token file " + path + ": open");
    return Status(why.code(),
                  why.message() +
                      ": write it, readable to the agent's user alone (a line `TENANT TOKEN` each, "
                      "one of them for admin), or correct tokensFile");
  }
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) {
    return ErrnoStatus(errno, "token file " + path + ": look at");
  }
  if (!S_ISREG(found.st_mode)) {
    return FailedPrecondition("token file " + path + ": read: not a regular file");
  }
  if ((found.st_mode & 0077U) != 0) {
    return PermissionDenied("token file " + path +
                            ": read: others may read or write it: chmod 600 it");
  }
  if (static_cast<std::uint64_t>(found.st_size) > kMaxFileBytes) {
    return ResourceExhausted("token file " + path + ": read: " + std::to_string(found.st_size) +
                             " bytes (limit " + std::to_string(kMaxFileBytes) + ")");
  }
  std::string text(static_cast<std::size_t>(found.st_size), '\0');
  std::size_t at = 0;
  while (at < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "token file " + path + ": read");
    if (n == 0) break;
    at += static_cast<std::size_t>(n);
  }
  text.resize(at);
  Loaded loaded;
  KVF_ASSIGN_OR_RETURN(loaded.entries, Parse(path, text));
  loaded.version = VersionOf(found);
  return loaded;
}

Result<std::vector<TokenTable::Entry>> TokenTable::Parse(const std::string& path,
                                                         std::string_view text) {
  std::vector<Entry> entries;
  std::set<std::string, std::less<>> tokens;
  std::string faults;
  const auto fault = [&](std::size_t line, std::string_view what) {
    if (faults.size() > 2'000) return;  // one fault may be on every line
    faults.append(faults.empty() ? "" : "; ").append("line ").append(std::to_string(line));
    faults.append(": ").append(what);
  };
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view tenant = TakeWord(line);
    if (tenant.empty() || tenant.front() == '#') continue;
    const std::string_view token = TakeWord(line);
    if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
      fault(number, "the token must have 8 to 4096 characters: write `tenant token`");
    } else if (!TakeWord(line).empty()) {
      fault(number, "more than two words: write `tenant token`");
    } else if (!tokens.emplace(token).second) {
      fault(number, "the token of an earlier line: give each tenant its own");
    } else {
      entries.push_back({std::string(tenant), std::string(token)});
    }
  }
  if (!faults.empty()) return InvalidArgument("token file " + path + ": parse: " + faults);
  return entries;
}

std::optional<std::string> TokenTable::TenantOf(std::string_view token) const {
  std::shared_ptr<const std::vector<Entry>> entries;
  {
    MutexLock lock(mu_);
    entries = entries_;
  }
  const Entry* match = nullptr;
  for (const Entry& entry : *entries) {
    if (EqualInConstantTime(token, entry.token)) match = &entry;
  }
  if (match == nullptr || token.empty()) return std::nullopt;
  return match->tenant;
}

std::optional<std::string> TokenTable::TokenOf(std::string_view tenant) const {
  std::shared_ptr<const std::vector<Entry>> entries;
  {
    MutexLock lock(mu_);
    entries = entries_;
  }
  for (const Entry& entry : *entries) {
    if (entry.tenant == tenant) return entry.token;
  }
  return std::nullopt;
}

Status TokenTable::ReloadIfChanged() {
  struct stat found {};
  if (::stat(path_.c_str(), &found) != 0) {
    return ErrnoStatus(errno, "token file " + path_ + ": look at");
  }
  {
    MutexLock lock(mu_);
    if (VersionOf(found) == version_) return Status::Ok();
  }
  KVF_ASSIGN_OR_RETURN(Loaded loaded, Read(path_));
  MutexLock lock(mu_);
  entries_ = std::make_shared<const std::vector<Entry>>(std::move(loaded.entries));
  version_ = loaded.version;
  return Status::Ok();
}

std::size_t TokenTable::size() const {
  MutexLock lock(mu_);
  return entries_->size();
}

}  // namespace kvfabric
