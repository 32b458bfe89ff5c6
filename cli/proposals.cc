#include "cli/proposals.h"

namespace kvfabric::cli {

Result<const PoolView*> FindProposal(const std::vector<PoolView>& pools, const std::string& id) {
  const PoolView* found = nullptr;
  std::string waiting;
  std::size_t count = 0;
  for (const PoolView& pool : pools) {
    const ProposalStatus& proposal = pool.status().rebalance.proposal;
    if (proposal.id.empty()) continue;
    if (proposal.approved) {
      if (proposal.id != id) continue;
      return InvalidArgument("proposal " + id + ": approved before; its moves are under way");
    }
    ++count;
    waiting += (waiting.empty() ? "" : ", ") + proposal.id + " of " + pool.name;
    if (id.empty() || proposal.id == id) found = &pool;
  }
  if (!id.empty() && found == nullptr) {
    return NotFound("proposal " + id + ": not waiting: " +
                    (count == 0 ? "nothing is proposed" : "there is " + waiting));
  }
  if (count == 0) {
    return NotFound("rebalance: nothing is proposed: kvctl rebalance status shows what is");
  }
  if (id.empty() && count > 1) {
    return InvalidArgument("rebalance: several proposals wait (" + waiting + "): name one");
  }
  return found;
}

}  // namespace kvfabric::cli
