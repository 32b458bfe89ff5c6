#pragma once

// PushCall: hands blocks to one peer: offers them, if asked to, and pushes those it wants. Used by
// replication, spill and drain. Keeps itself alive until it has completed, once, on any thread; the
// pins are held until then.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/peer_set.h"
#include "common/clock.h"

namespace kvfabric {

enum class PushOutcome : std::uint8_t { kStored, kHadIt, kRefused, kFailed };
constexpr bool Holds(PushOutcome outcome) {
  return outcome == PushOutcome::kStored || outcome == PushOutcome::kHadIt;
}

class PushCall : public std::enable_shared_from_this<PushCall> {
 public:
  struct Args {
    LinkRef link;
    std::string pool_uid;
    OfferReason reason = OfferReason::kReplica;
    std::vector<PinnedBlock> blocks;
    bool offer_first = true;
    Deadline deadline;
  };
  // One outcome per block, in order.
  using Done = std::function<void(std::vector<PushOutcome>)>;

  static void Start(const Clock& clock, Args args, Done done);

 private:
  struct Private {};  // only Start makes one

 public:
  PushCall(Private, Args args, Done done);

 private:
  void Offer(const Clock& clock);
  void OnOffered(const Result<OfferReply>& reply);
  void Push();
  void OnPushed(const Result<PushResult>& result);

  const Done done_;  // goes last: what it holds open outlives the pins
  Args args_;
  std::vector<PushOutcome> outcomes_;  // each step runs after the one before it
  std::vector<std::size_t> pushed_;    // indices
};

}  // namespace kvfabric
