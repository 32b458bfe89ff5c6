#pragma once

// PutCall: one Put under way. Copies and hashes on the copy executor, in chunks, so that one large
// request uses all its threads; each block is visible at its own commit. With acks Local it
// completes then; with Replicated when the copies are there or the deadline has come, answering how
// many there are.
//
// Keeps itself alive until it has completed, once, on any thread. Bounds: the executor's queue; a
// chunk that finds it full answers kFailed for its blocks.

#include <memory>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/cluster/pool_node.h"
#include "agent/cluster/request_keys.h"

namespace kvfabric {

class PutCall : public std::enable_shared_from_this<PutCall> {
 public:
  static void Start(PoolRef pool, PutArgs args, Deadline deadline, Completion<PutAnswer> done);

 private:
  struct Private {};  // only Start makes one

 public:
  PutCall(Private, PoolRef pool, PutArgs args, Deadline deadline, Completion<PutAnswer> done);

 private:
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20U;
  static constexpr std::size_t kChunkItems = 64;

  void Run();
  std::vector<std::size_t> ChunkEnds() const;
  void RunChunk(std::size_t begin, std::size_t end);
  // `kept` says afterwards whether the block stays here.
  Status PutOne(std::size_t at, bool* kept);
  // True when this node keeps the block: always, unless bytes are spread to owners only. Asked once
  // per block: owners come and go.
  bool KeptHere(std::size_t at) const;
  void SendCopies(std::size_t at, PinnedBlock block, bool* kept);
  BlockHeader HeaderOf(std::size_t at) const;
  void CountStatus(PutStatus status) const;
  void EndPart();
  void EndCopies(std::size_t at, std::size_t stored);
  void OnDeadline();
  // Completes when nothing is left to wait for, or with what there is when `late`.
  void CompleteIfDone(bool late);

  const PoolRef pool_;
  const PutArgs args_;
  const Deadline deadline_;
  const Completion<PutAnswer> done_;
  const Gate::Pass pass_;
  const SharedPoolSpec spec_;
  const SharedRouting routing_;
  RequestKeys keys_;

  Mutex mu_;
  PutAnswer answer_ GUARDED_BY(mu_);
  std::size_t parts_ GUARDED_BY(mu_) = 0;   // chunks: the caller's bytes are in use
  std::size_t copies_ GUARDED_BY(mu_) = 0;  // blocks whose copies are awaited (acks Replicated)
  bool completed_ GUARDED_BY(mu_) = false;
  Timer::Id timer_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
