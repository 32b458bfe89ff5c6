#pragma once

// TokenTable: which tenant a token stands for, from the file `tokens` of local mode: lines
// `tenant token`, mode 0600. Owned by main, which calls ReloadIfChanged from a
// timer; any thread may call. A file that became bad keeps the last good table.

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class TokenTable {
 public:
  static constexpr std::size_t kMinTokenBytes = 8;
  static constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;

  // Every fault of the file at once, by line number and never with a token in the text.
  static Result<std::unique_ptr<TokenTable>> Load(std::string path);
  TokenTable(const TokenTable&) = delete;  // one reader of one file
  TokenTable& operator=(const TokenTable&) = delete;

  // Takes the same time whichever entry matches. Empty tokens are nobody's.
  std::optional<std::string> TenantOf(std::string_view token) const EXCLUDES(mu_);
  // The tenant's first token: what this agent itself speaks with, as `admin`.
  std::optional<std::string> TokenOf(std::string_view tenant) const EXCLUDES(mu_);
  // Reads the file again when it is another one or was written since. An error keeps the table.
  Status ReloadIfChanged() EXCLUDES(mu_);
  std::size_t size() const EXCLUDES(mu_);

 private:
  struct Entry {
    std::string tenant;
    std::string token;
  };
  // What tells one version of the file from another.
  struct Version {
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
    std::int64_t changed_ns = 0;
    std::int64_t bytes = -1;
    bool operator==(const Version&) const = default;
  };
  struct Loaded {
    std::vector<Entry> entries;
    Version version;
  };

  TokenTable(std::string path, Loaded loaded);
  static Result<Loaded> Read(const std::string& path);
  static Result<std::vector<Entry>> Parse(const std::string& path, std::string_view text);
  static Version VersionOf(const struct stat& file);

  const std::string path_;
  mutable Mutex mu_;
  std::shared_ptr<const std::vector<Entry>> entries_ GUARDED_BY(mu_);
  Version version_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
