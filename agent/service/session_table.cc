#include "agent/service/session_table.h"

#include <sys/random.h>

#include <array>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"

namespace kvfabric {

std::string RandomId() {
  std::array<std::byte, 16> bytes{};
  KVF_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "no random numbers");
  return ToHex(bytes);
}

Result<std::string> SessionTable::Add(std::string token, Entry entry) {
  std::string id = RandomId();
  MutexLock lock(mu_);
  if (sessions_.size() >= max_sessions_) {
    return ResourceExhausted("cache session: " + std::to_string(max_sessions_) +
                             " are open (the limit): close some");
  }
  sessions_.emplace(id, Bound{std::move(token), std::move(entry)});
  return id;
}

std::optional<SessionTable::Entry> SessionTable::Find(std::string_view id,
                                                      std::string_view token) const {
  MutexLock lock(mu_);
  const auto found = sessions_.find(std::string(id));
  if (found == sessions_.end() || found->second.token != token) return std::nullopt;
  return found->second.entry;
}

void SessionTable::Remove(const std::string& id) {
  MutexLock lock(mu_);
  sessions_.erase(id);
}

std::size_t SessionTable::size() const {
  MutexLock lock(mu_);
  return sessions_.size();
}

}  // namespace kvfabric
