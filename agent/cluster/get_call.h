#pragma once

// GetCall: one Get under way. Blocks that the lease pins or that are here are answered as they are;
// those leased at peers are fetched from all their holders at once, into transient memory, verified
// on the way in, and hang on the same lease then. A block read from peers for the second time is
// kept. A holder that is lost, or the deadline, makes misses of what has not come.
//
// Keeps itself alive until it has completed, once, on any thread, by the deadline.

#include <memory>
#include <unordered_map>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/cluster/pool_node.h"
#include "agent/cluster/remote_lease.h"
#include "agent/cluster/request_keys.h"

namespace kvfabric {

class GetCall : public std::enable_shared_from_this<GetCall> {
 public:
  static void Start(PoolRef pool, SessionId session, GetArgs args, Deadline deadline,
                    Completion<GetAnswer> done);

 private:
  struct Private {};  // only Start makes one

 public:
  GetCall(Private, PoolRef pool, SessionId session, GetArgs args, Deadline deadline,
          Completion<GetAnswer> done);

 private:
  // Blocks of one request to one holder.
  struct Batch {
    NodeIndex holder = kNoNode;
    std::uint64_t lease_id = 0;
    std::uint64_t bytes = 0;
    std::vector<std::size_t> keys;
  };
  // Many small requests rather than one: each that arrives is a result of its own.
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{8} << 20U;
  static constexpr std::size_t kBatchBlocks = 64;

  bool chain() const { return args_.ns->kind == NamespaceKind::kChain; }
  void TakeOwnLease();
  void Collect();
  std::vector<Batch> PlanFetches() REQUIRES(mu_);
  void Fetch(Batch batch);
  Reservation PlaceFor(const BlockHeader& header);
  void OnFetched(const Batch& batch, Result<FetchResult> result);
  void TakeFetched(std::size_t key, PinnedBlock block) REQUIRES(mu_);
  void EndPart();
  void Finish();
  void TouchLocal(const GetAnswer& answer);

  const PoolRef pool_;
  const SessionId session_;
  const GetArgs args_;
  const Deadline deadline_;
  const Completion<GetAnswer> done_;
  const Gate::Pass pass_;
  RequestKeys keys_;
  std::size_t wanted_ = 0;  // keys that can be answered, from the first
  std::uint64_t lease_id_ = 0;
  std::unordered_map<KeyId, std::size_t, KeyIdHash> fetching_;  // set before the first fetch

  Mutex mu_;
  GetAnswer answer_ GUARDED_BY(mu_);
  std::size_t parts_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
