#pragma once

// DramTier: the Tier whose slots lie in the DramArena. Moving is one fused copy and hash on a
// bounded worker pool, so that event loops and gRPC threads never copy blocks themselves.
// Owned by main; arena and workers outlive it. Any thread.

#include "agent/tier/dram_arena.h"
#include "agent/tier/tier.h"

namespace kvfabric {

class DramTier final : public Tier {
 public:
  DramTier(DramArena& arena, Executor& workers, const Clock& clock);

  std::string_view name() const override { return "DRAM"; }
  Result<TierSlot> Allocate(const std::string& tenant, std::uint64_t bytes) override;
  void Free(const TierSlot& slot) override;
  void Submit(std::vector<TierOperation> batch, Deadline deadline, Executor& executor,
              TierCompletion done) override;

 private:
  DramArena& arena_;
  Executor& workers_;
  const Clock& clock_;
};

}  // namespace kvfabric
