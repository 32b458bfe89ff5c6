#pragma once

// LookupCall: one Lookup under way. Pins what is here; asks the owners for holders of the rest (the
// union per block, not only a suffix); leases at the best holders, once more elsewhere where one
// refused; grants one lease for all of it. Promises only what is pinned, here or at a holder.
//
// Keeps itself alive until it has completed, once, on any thread, by the deadline.

#include <memory>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/cluster/holder_choice.h"
#include "agent/cluster/pool_node.h"
#include "agent/cluster/remote_lease.h"
#include "agent/cluster/request_keys.h"

namespace kvfabric {

class LookupCall : public std::enable_shared_from_this<LookupCall> {
 public:
  static void Start(PoolRef pool, SessionId session, LookupArgs args, Deadline deadline,
                    Completion<LookupAnswer> done);

 private:
  struct Private {};  // only Start makes one

 public:
  LookupCall(Private, PoolRef pool, SessionId session, LookupArgs args, Deadline deadline,
             Completion<LookupAnswer> done);

 private:
  using Cell = std::uint32_t;  // key * lanes + lane: in the order of promises
  struct Group {
    NodeIndex holder = kNoNode;
    std::vector<Cell> cells;
  };

  std::size_t LaneOf(Cell cell) const { return cell % keys_.lane_count(); }
  std::size_t KeyOf(Cell cell) const { return cell / keys_.lane_count(); }
  const KeyId& IdOf(Cell cell) const { return keys_.id(LaneOf(cell), KeyOf(cell)); }
  bool chain() const { return args_.ns->kind == NamespaceKind::kChain; }

  void Run();
  void PinLocal();
  void Locate();
  void OnLocated(Locator::Found found);
  // Leases at holders for cells that lack a promise; false when there is nothing to ask.
  bool LeaseRound();
  std::size_t KeysWithin() REQUIRES(mu_);
  void SendLease(Group group);
  void OnLeased(const Group& group, Result<LeaseReply> reply);
  void EndPart();
  void Finish();
  LookupAnswer MakeAnswer() REQUIRES(mu_);
  std::vector<bool> FoundKeys() REQUIRES(mu_);
  // Pins of the found keys under one lease; what a budget cuts is found no more.
  void Grant(std::vector<bool>& found, LookupAnswer& answer) REQUIRES(mu_);
  void AttachRemote(const std::vector<bool>& found, const LookupAnswer& answer) REQUIRES(mu_);
  void CountMetrics(const LookupAnswer& answer) const;

  const PoolRef pool_;
  const SessionId session_;
  const LookupArgs args_;
  const Deadline deadline_;
  const Completion<LookupAnswer> done_;
  const Gate::Pass pass_;
  RequestKeys keys_;
  SharedRouting routing_;

  Mutex mu_;
  std::vector<PinnedBlock> pins_ GUARDED_BY(mu_);  // per cell
  std::vector<bool> promised_ GUARDED_BY(mu_);     // per cell, at a peer
  std::vector<Cell> wanted_ GUARDED_BY(mu_);       // cells that are not here
  Locator::Found candidates_ GUARDED_BY(mu_);      // per wanted cell
  std::unique_ptr<HolderChoice> choice_ GUARDED_BY(mu_);
  std::shared_ptr<RemoteLease> remote_ GUARDED_BY(mu_);
  std::chrono::milliseconds remote_lease_ GUARDED_BY(mu_){0};  // the shortest granted
  std::size_t parts_ GUARDED_BY(mu_) = 0;
  int rounds_ GUARDED_BY(mu_) = 0;
  bool late_ GUARDED_BY(mu_) = false;  // a holder did not answer in time
};

}  // namespace kvfabric
