#pragma once

// Tier: where the bytes of blocks lie, asynchronously, so that memory, NVMe and GPU fit one
// interface. A tier gives out slots and moves whole blocks between a slot and a buffer; it knows
// no keys, no namespaces and no policy.
//
// Any thread may call; no call blocks. A completion runs exactly once, on the executor given with
// the batch, also when the deadline passes. Buffers stay valid until then; who submits keeps what
// owns them in the completion.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/status.h"

namespace kvfabric {

// Whose memory a buffer is: decides how a tier may move it.
enum class MemoryKind : std::uint8_t {
  kHostArena,      // the node's own memory
  kClientStaging,  // mapped from a client: it may change under us, so hash what was copied
  kDevice,         // GPU memory: only a tier that drives that device may touch it
};

struct Buffer {
  MemoryKind memory = MemoryKind::kHostArena;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

// Names memory or flash in one tier; what the numbers mean is the tier's own business.
struct TierSlot {
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // at least the block's length
};

struct TierOperation {
  enum class Kind : std::uint8_t {
    kStore,  // buffer -> slot
    kLoad,   // slot -> buffer
  };
  Kind kind = Kind::kStore;
  TierSlot slot;
  Buffer buffer;
  // What the bytes must hash to; 0 = not known yet (a store that computes it).
  std::uint64_t checksum = 0;
};

// DATA_LOSS: the bytes moved do not match the checksum. DEADLINE_EXCEEDED: not moved, or not
// wholly; the destination is garbage either way.
struct TierResult {
  Status status;
  std::uint64_t checksum = 0;  // of what was moved
};

using TierCompletion = std::function<void(std::vector<TierResult>)>;

class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;
  // RESOURCE_EXHAUSTED when full: evict and try again.
  virtual Result<TierSlot> Allocate(const std::string& tenant, std::uint64_t bytes) = 0;
  virtual void Free(const TierSlot& slot) = 0;

  // Results come in the order of `batch`. UNAVAILABLE for all when the tier's queue is full, then
  // too by way of `done` on `executor`, which must take it.
  virtual void Submit(std::vector<TierOperation> batch, Deadline deadline, Executor& executor,
                      TierCompletion done) = 0;
};

}  // namespace kvfabric
