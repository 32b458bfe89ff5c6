#pragma once

// ClearPools: the pools whose blocks may travel between agents unencrypted
// (spec.security.transport: Disabled). Whatever is not named is encrypted. Any thread.

#include <set>
#include <string>
#include <utility>

#include "common/mutex.h"

namespace kvfabric {

class ClearPools {
 public:
  void Assign(std::set<std::string> uids) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    uids_ = std::move(uids);
  }
  bool Contains(const std::string& uid) const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return uids_.count(uid) != 0;
  }

 private:
  mutable Mutex mu_;
  std::set<std::string> uids_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
