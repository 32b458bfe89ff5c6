#pragma once

// DramArena: the node's memory for blocks, shared by its pools, as memfds that each belong to one
// tenant for their whole life.
//
// Owned by main; any thread may call. Slots hold payload only, in steps of 256 bytes; a memfd has
// one slot size at a time and may change it while empty; a block takes a larger slot only when
// no memfd can be had for its size: at most twice as large, or any with Fit::kAny. Memory changes
// tenant by closing one memfd and making a fresh one. Hard cap: memfds in use plus closed ones that
// a session has still mapped never exceed Options::bytes (the probe's 1 MiB apart).
//
// Closing rule: a memfd that leaves use counts until every session that mapped it said so
// (OnUnmapped) or ended; the local socket service tells sessions to unmap when OnClosing names
// them and disconnects those that Laggards() lists after 1 s.
// Lock order: users_mu_, then locks of ArenaUsers, then mu_, which is a leaf but for the observer.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/tier/memfd.h"
#include "agent/tier/slab.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/leash.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

inline constexpr std::uint64_t kSlotStepBytes = 256;
inline constexpr std::uint64_t kProbeMemfdBytes = std::uint64_t{1} << 20U;
// The /readyz self-test's tenant; not a legal name for any other.
inline constexpr const char* kProbeTenant = "/probe";

constexpr std::uint64_t RoundUpToSlot(std::uint64_t bytes) {
  return bytes == 0 ? kSlotStepBytes
                    : (bytes - 1) / kSlotStepBytes * kSlotStepBytes + kSlotStepBytes;
}

// Memory for one block. A plain value: whoever holds it gives it back once.
struct ArenaSlot {
  std::byte* data = nullptr;
  std::uint64_t memfd_id = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // slot size, at least what was asked for
};

// The local socket service. Called under the arena's lock: only append to a queue of your own.
class ArenaObserver {
 public:
  virtual ~ArenaObserver() = default;
  // Before any offset in it is handed out: connected clients of the tenant get the descriptor
  // first, those that connect later by MemfdsOf.
  virtual void OnMemfd(const std::string& tenant, const MemfdRef& memfd) = 0;
  // Out of use; `sessions` have it mapped and must let go within 1 s.
  virtual void OnClosing(std::uint64_t memfd_id, const std::vector<std::uint64_t>& sessions) = 0;
};

// A pool's engine: owns slots, knows how warm they are. Called without the arena's lock.
class ArenaUser {
 public:
  struct Warmth {
    std::int64_t newest_touch_us = 0;  // of the newest block in that memfd
    std::uint64_t pinned_blocks = 0;
  };
  virtual ~ArenaUser() = default;
  virtual void AddWarmth(std::map<std::uint64_t, Warmth>& by_memfd) const = 0;
  // Drops its blocks there; pinned ones miss from now on and give their slots back with the last
  // pin.
  virtual void EmptyMemfd(std::uint64_t memfd_id) = 0;
};

struct ArenaStats {
  std::uint64_t cap_bytes = 0;
  std::uint64_t memfd_bytes = 0;    // in use, spare and closing; never above the cap
  std::uint64_t spare_bytes = 0;    // prefaulted, without a tenant
  std::uint64_t closing_bytes = 0;  // closed, still mapped by some session
  std::uint64_t slot_bytes = 0;     // handed out
  std::uint64_t closed_memfds = 0;  // since start
};

class DramArena {
 public:
  struct Options {
    std::uint64_t bytes = 0;         // hard cap
    std::uint64_t memfd_bytes = 0;   // 0 = min(64 MiB, bytes / 16), at least 1 MiB
    const Clock* clock = nullptr;    // borrowed; nullptr = the machine's
    Executor* background = nullptr;  // borrowed; prefaults there; nullptr = prefaults nothing
  };
  struct Laggard {
    std::uint64_t session = 0;
    std::uint64_t memfd_id = 0;
  };
  static constexpr std::chrono::milliseconds kUnmapGrace{1000};
  static constexpr std::size_t kMaxEmptying = 4;

  static Result<std::unique_ptr<DramArena>> Create(Options options);
  static std::uint64_t MemfdBytesFor(std::uint64_t arena_bytes);
  ~DramArena();
  DramArena(const DramArena&) = delete;  // owns the memory
  DramArena& operator=(const DramArena&) = delete;

  // The largest block that fits.
  std::uint64_t memfd_bytes() const { return memfd_bytes_; }

  // RESOURCE_EXHAUSTED when the tenant's memfds are full and no other can be had now: evict and
  // try again, or Reclaim. INVALID_ARGUMENT for more than memfd_bytes().
  enum class Fit : std::uint8_t { kGood, kAny };
  Result<ArenaSlot> Allocate(const std::string& tenant, std::uint64_t bytes, Fit fit = Fit::kGood)
      EXCLUDES(mu_);
  void Free(const ArenaSlot& slot) EXCLUDES(mu_);
  // The bytes of a slot that is handed out, for those who kept its numbers only.
  MutableByteSpan BytesAt(const ArenaSlot& slot) const EXCLUDES(mu_);

  // Empties the memfd whose newest block is coldest, for `tenant`. Takes time: from a background
  // thread, after Allocate failed though the tenant is within its quota. What pins hold goes when
  // they end; until then Allocate may fail again. At most kMaxEmptying at a time.
  void Reclaim(const std::string& tenant) EXCLUDES(users_mu_, mu_);
  void Register(ArenaUser* user) EXCLUDES(users_mu_);
  // Returns when no call to `user` is under way. Not from such a call.
  void Unregister(ArenaUser* user) EXCLUDES(users_mu_);

  // All memfds of a tenant that are in use, oldest first.
  std::vector<MemfdRef> MemfdsOf(const std::string& tenant) const EXCLUDES(mu_);
  // Once, before the first session; borrowed.
  void SetObserver(ArenaObserver* observer) EXCLUDES(mu_);
  // Before the descriptor is sent. False = out of use already: do not send it.
  bool OnMapped(std::uint64_t session, std::uint64_t memfd_id) EXCLUDES(mu_);
  void OnUnmapped(std::uint64_t session, std::uint64_t memfd_id) EXCLUDES(mu_);
  void OnSessionEnded(std::uint64_t session) EXCLUDES(mu_);
  // Sessions that were told to unmap kUnmapGrace ago and did not.
  std::vector<Laggard> Laggards() const EXCLUDES(mu_);

  // False while memory is being prefaulted: the agent is Recovering.
  bool ready() const EXCLUDES(mu_);
  // Not OK when the machine has less memory than the caps promised: the agent ends.
  Status prefault_status() const EXCLUDES(mu_);
  ArenaStats stats() const EXCLUDES(mu_);

 private:
  struct Tenant {
    // By slot size: active slabs with a free slot, lowest id first, so that later ones empty.
    std::map<std::uint64_t, std::map<std::uint64_t, Slab*>> partial;
    std::map<std::uint64_t, Slab*> empty;
  };
  // Memfds to close after mu_ is released: unmapping 64 MiB takes milliseconds.
  using Remains = std::vector<std::shared_ptr<Memfd>>;

  DramArena(Options options, std::uint64_t memfd_bytes);
  Result<Slab*> SlabFor(const std::string& tenant, std::uint64_t slot_bytes, Fit fit,
                        Remains& remains) REQUIRES(mu_);
  void DropPartial(Slab* slab) REQUIRES(mu_);
  Result<Slab*> NewSlab(const std::string& tenant, Remains& remains) REQUIRES(mu_);
  Result<std::shared_ptr<Memfd>> TakeMemfd(Remains& remains) REQUIRES(mu_);
  Slab* EmptySlabOfAnother() REQUIRES(mu_);
  void Close(Slab* slab, Remains& remains) REQUIRES(mu_);
  void Forget(std::uint64_t memfd_id, Remains& remains) REQUIRES(mu_);
  void PutEmpty(Slab* slab) REQUIRES(mu_);
  std::vector<std::uint64_t> Emptying() const EXCLUDES(mu_);
  bool MayEmptyAnother() const EXCLUDES(mu_);
  std::optional<std::uint64_t> EmptyColdest(
      const std::map<std::uint64_t, ArenaUser::Warmth>& warmth, const std::string& wanted_by)
      EXCLUDES(mu_);
  bool BeginPrefault() EXCLUDES(mu_);
  void SchedulePrefault() EXCLUDES(mu_);
  void Prefault() EXCLUDES(mu_);
  void PrefaultOne() EXCLUDES(mu_);

  const std::uint64_t cap_bytes_;
  const std::uint64_t memfd_bytes_;
  const Clock& clock_;
  Executor* const background_;

  mutable Mutex users_mu_;
  std::vector<ArenaUser*> users_ GUARDED_BY(users_mu_);

  mutable Mutex mu_;
  ArenaObserver* observer_ GUARDED_BY(mu_) = nullptr;
  std::uint64_t next_id_ GUARDED_BY(mu_) = 1;
  std::uint64_t total_bytes_ GUARDED_BY(mu_) = 0;  // without the probe's
  std::uint64_t slot_bytes_ GUARDED_BY(mu_) = 0;
  std::uint64_t closed_memfds_ GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<Memfd>> spare_ GUARDED_BY(mu_);
  std::unordered_map<std::uint64_t, std::unique_ptr<Slab>> slabs_ GUARDED_BY(mu_);
  std::unordered_map<std::string, Tenant> tenants_ GUARDED_BY(mu_);
  bool prefaulting_ GUARDED_BY(mu_) = false;
  bool ready_ GUARDED_BY(mu_) = false;  // once true, true
  Status prefault_status_ GUARDED_BY(mu_);
  Leash leash_;  // last, so that it is cut before anything else goes
};

}  // namespace kvfabric
