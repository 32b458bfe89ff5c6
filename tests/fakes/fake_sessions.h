#pragma once

// FakeSessions: sessions and their leases in plain maps; a lease never runs out. Any thread.

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "agent/cluster/fabric.h"
#include "common/mutex.h"

namespace kvfabric {

class FakeSessions {
 public:
  SessionId Open() {
    MutexLock lock(mu_);
    sessions_.insert(++last_session_);
    return last_session_;
  }
  void Close(SessionId session) {
    std::vector<Record> ended;  // pins go without the lock
    MutexLock lock(mu_);
    sessions_.erase(session);
    for (auto lease = leases_.begin(); lease != leases_.end();) {
      if (lease->second.session != session) {
        ++lease;
        continue;
      }
      ended.push_back(std::move(lease->second));
      lease = leases_.erase(lease);
    }
  }
  bool Has(SessionId session) const {
    MutexLock lock(mu_);
    return sessions_.contains(session);
  }
  // 0 for a session that has ended.
  std::uint64_t Grant(SessionId session, std::vector<PinnedBlock> pins) {
    MutexLock lock(mu_);
    if (!sessions_.contains(session)) return 0;
    leases_.emplace(++last_lease_, Record{session, std::move(pins)});
    return last_lease_;
  }
  void Release(SessionId session, const std::vector<std::uint64_t>& lease_ids) {
    std::vector<Record> ended;
    MutexLock lock(mu_);
    for (const std::uint64_t id : lease_ids) {
      const auto found = leases_.find(id);
      if (found == leases_.end() || found->second.session != session) continue;
      ended.push_back(std::move(found->second));
      leases_.erase(found);
    }
  }
  bool Owns(SessionId session, std::uint64_t lease_id) const {
    MutexLock lock(mu_);
    const auto found = leases_.find(lease_id);
    return found != leases_.end() && found->second.session == session;
  }
  std::size_t open() const {
    MutexLock lock(mu_);
    return sessions_.size();
  }
  std::size_t leases() const {
    MutexLock lock(mu_);
    return leases_.size();
  }

 private:
  struct Record {
    SessionId session = 0;
    std::vector<PinnedBlock> pins;
  };

  mutable Mutex mu_;
  std::set<SessionId> sessions_ GUARDED_BY(mu_);
  SessionId last_session_ GUARDED_BY(mu_) = 0;
  std::map<std::uint64_t, Record> leases_ GUARDED_BY(mu_);
  std::uint64_t last_lease_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
