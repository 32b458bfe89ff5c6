#pragma once

// NamespaceTable interns namespaces: one object per digest, so that headers share it. Owned by
// FabricNode; any thread. At most max_namespaces in use; one more is RESOURCE_EXHAUSTED. Those that
// nothing names any more are forgotten when room is needed.

#include <string>
#include <unordered_map>

#include "agent/block/block_header.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class NamespaceTable {
 public:
  explicit NamespaceTable(std::size_t max_namespaces = 65'536) : max_namespaces_(max_namespaces) {}

  // `ns` as a peer or client names it. INVALID_ARGUMENT when a namespace of that digest differs.
  Result<NamespaceRef> Intern(const Namespace& ns) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto found = table_.find(ns.digest);
    if (found != table_.end()) {
      const Namespace& known = *found->second;
      if (known.pool_uid != ns.pool_uid || known.tenant != ns.tenant || known.kind != ns.kind) {
        return InvalidArgument("namespace of tenant " + ns.tenant +
                               ": pool, tenant or kind differ " + "from those of the same digest");
      }
      return found->second;
    }
    if (table_.size() >= max_namespaces_) {
      std::erase_if(table_, [](const auto& entry) { return entry.second.use_count() == 1; });
    }
    if (table_.size() >= max_namespaces_) {
      return ResourceExhausted("namespaces: " + std::to_string(max_namespaces_) +
                               " in use, no room for another");
    }
    return table_.emplace(ns.digest, std::make_shared<const Namespace>(ns)).first->second;
  }

 private:
  const std::size_t max_namespaces_;
  Mutex mu_;
  std::unordered_map<NamespaceDigest, NamespaceRef, NamespaceDigestHash> table_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
