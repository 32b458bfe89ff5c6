#pragma once

// DeleteCall: one Delete under way: drops the copies here and, best effort, at the holders that the
// directory knows. Answers of how many keys a copy went. Keeps itself alive until it has completed,
// once.

#include <memory>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/cluster/pool_node.h"
#include "agent/cluster/request_keys.h"

namespace kvfabric {

class DeleteCall : public std::enable_shared_from_this<DeleteCall> {
 public:
  static void Start(PoolRef pool, GetArgs args, Deadline deadline, Completion<std::uint32_t> done);

 private:
  struct Private {};  // only Start makes one

 public:
  DeleteCall(Private, PoolRef pool, Deadline deadline, Completion<std::uint32_t> done);

 private:
  void OnLocated(const Locator::Found& found);
  // `counted`: what it answers adds to our answer; it does for one copy of a key only.
  void DeleteAt(NodeIndex holder, std::vector<KeyId> ids, bool counted);
  void EndPart(std::uint32_t deleted);

  const PoolRef pool_;
  const Deadline deadline_;
  const Completion<std::uint32_t> done_;
  const Gate::Pass pass_;
  std::vector<DirectoryEntry> keys_;  // constant once the directory is asked
  std::vector<bool> was_here_;        // per key

  Mutex mu_;
  std::uint32_t deleted_ GUARDED_BY(mu_) = 0;
  std::size_t parts_ GUARDED_BY(mu_) = 1;
};

}  // namespace kvfabric
