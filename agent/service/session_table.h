#pragma once

// SessionTable: clients of the gRPC edge. An id comes from Cache.Session, is bound to the token
// that opened it, and is worth nothing with another.
//
// Owned by the Cache service; any thread. Bounded by `max_sessions`.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "agent/cluster/fabric.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

// 32 hexadecimal digits from the kernel's random source.
std::string RandomId();

class SessionTable {
 public:
  struct Entry {
    SessionId session = 0;  // the Fabric's
    std::string tenant;
  };

  explicit SessionTable(std::size_t max_sessions) : max_sessions_(max_sessions) {}

  // RESOURCE_EXHAUSTED at the bound.
  Result<std::string> Add(std::string token, Entry entry) EXCLUDES(mu_);
  // nullopt: unknown, ended, or another token's.
  std::optional<Entry> Find(std::string_view id, std::string_view token) const EXCLUDES(mu_);
  void Remove(const std::string& id) EXCLUDES(mu_);
  std::size_t size() const EXCLUDES(mu_);

 private:
  struct Bound {
    std::string token;
    Entry entry;
  };

  const std::size_t max_sessions_;
  mutable Mutex mu_;
  std::unordered_map<std::string, Bound> sessions_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
