#include "agent/tier/dram_arena.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace kvfabric {

namespace {

constexpr std::uint64_t kLargestMemfdBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kSmallestMemfdBytes = std::uint64_t{1} << 20U;
// A block may take a slot this many times its size when memory is short.
constexpr std::uint64_t kMostWaste = 2;

}  // namespace

std::uint64_t DramArena::MemfdBytesFor(std::uint64_t arena_bytes) {
  const std::uint64_t share = arena_bytes / 16 / kSmallestMemfdBytes * kSmallestMemfdBytes;
  return std::clamp(share, kSmallestMemfdBytes, kLargestMemfdBytes);
}

Result<std::unique_ptr<DramArena>> DramArena::Create(Options options) {
  const std::uint64_t memfd_bytes =
      options.memfd_bytes > 0 ? options.memfd_bytes : MemfdBytesFor(options.bytes);
  if (memfd_bytes % 4096 != 0 || options.bytes < memfd_bytes) {
    return InvalidArgument("arena of " + std::to_string(options.bytes) +
                           " bytes: create: not room for one memfd (need " +
                           std::to_string(memfd_bytes) + ", whole pages)");
  }
  std::unique_ptr<DramArena> arena(new DramArena(options, memfd_bytes));
  {
    // The self-test must work also when every other byte is in use.
    MutexLock lock(arena->mu_);
    auto memfd = Memfd::Create(arena->next_id_++, kProbeMemfdBytes);
    if (!memfd.ok()) return memfd.status();
    KVF_RETURN_IF_ERROR((*memfd)->Prefault());
    auto slab = std::make_unique<Slab>(std::move(memfd).value(), kProbeTenant);
    const std::uint64_t id = slab->memfd->id();
    arena->PutEmpty(slab.get());
    arena->slabs_.emplace(id, std::move(slab));
  }
  arena->SchedulePrefault();
  return arena;
}

DramArena::DramArena(Options options, std::uint64_t memfd_bytes)
    : cap_bytes_(options.bytes),
      memfd_bytes_(memfd_bytes),
      clock_(options.clock != nullptr ? *options.clock : Clock::System()),
      background_(options.background) {
  ready_ = background_ == nullptr;
}

DramArena::~DramArena() { leash_.Cut(); }

Result<ArenaSlot> DramArena::Allocate(const std::string& tenant, std::uint64_t bytes, Fit fit) {
  if (bytes > memfd_bytes_) {
    return InvalidArgument("arena: allocate for tenant " + tenant + ": block too large (" +
                           std::to_string(bytes) + " bytes, limit " + std::to_string(memfd_bytes_) +
                           ")");
  }
  Remains remains;
  MutexLock lock(mu_);
  KVF_ASSIGN_OR_RETURN(Slab * slab, SlabFor(tenant, RoundUpToSlot(bytes), fit, remains));
  const std::uint64_t offset = slab->Take();
  if (slab->full()) DropPartial(slab);
  slot_bytes_ += slab->slot_bytes();
  return ArenaSlot{.data = slab->memfd->data() + offset,
                   .memfd_id = slab->memfd->id(),
                   .offset = offset,
                   .bytes = slab->slot_bytes()};
}

Result<Slab*> DramArena::SlabFor(const std::string& tenant, std::uint64_t slot_bytes, Fit fit,
                                 Remains& remains) {
  Tenant& owner = tenants_[tenant];
  const auto at_least = owner.partial.lower_bound(slot_bytes);
  const bool any = at_least != owner.partial.end();
  if (any && at_least->first == slot_bytes) return at_least->second.begin()->second;
  Slab* slab = nullptr;
  if (!owner.empty.empty()) {
    slab = owner.empty.begin()->second;
    owner.empty.erase(owner.empty.begin());
  } else {
    auto fresh = NewSlab(tenant, remains);
    if (!fresh.ok()) {
      // Better a slot too large than dropping somebody's blocks for one that fits.
      if (any && (fit == Fit::kAny || at_least->first / kMostWaste <= slot_bytes)) {
        return at_least->second.begin()->second;
      }
      return fresh.status();
    }
    slab = *fresh;
  }
  if (slot_bytes > slab->memfd->size_bytes()) {  // the probe's is small
    PutEmpty(slab);
    return ResourceExhausted("arena: allocate: larger than the memfd of " + tenant);
  }
  slab->Cut(slot_bytes);
  owner.partial[slot_bytes][slab->memfd->id()] = slab;
  return slab;
}

void DramArena::DropPartial(Slab* slab) {
  auto& by_size = tenants_[slab->tenant].partial;
  const auto partial = by_size.find(slab->slot_bytes());
  if (partial == by_size.end()) return;
  partial->second.erase(slab->memfd->id());
  if (partial->second.empty()) by_size.erase(partial);
}

Result<Slab*> DramArena::NewSlab(const std::string& tenant, Remains& remains) {
  if (tenant == kProbeTenant)
    return ResourceExhausted("arena: allocate: the probe's memfd is full");
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<Memfd> memfd, TakeMemfd(remains));
  const std::uint64_t id = memfd->id();
  auto owned = std::make_unique<Slab>(std::move(memfd), tenant);
  Slab* slab = owned.get();
  slab->since = clock_.Now();
  slabs_.emplace(id, std::move(owned));
  if (observer_ != nullptr) observer_->OnMemfd(tenant, slab->memfd);
  return slab;
}

Result<std::shared_ptr<Memfd>> DramArena::TakeMemfd(Remains& remains) {
  if (!spare_.empty()) {
    std::shared_ptr<Memfd> memfd = std::move(spare_.back());
    spare_.pop_back();
    return memfd;
  }
  if (total_bytes_ + memfd_bytes_ > cap_bytes_) {
    if (Slab* other = EmptySlabOfAnother(); other != nullptr) Close(other, remains);
  }
  if (total_bytes_ + memfd_bytes_ > cap_bytes_) {
    return ResourceExhausted("arena: allocate: every memfd is in use (cap " +
                             std::to_string(cap_bytes_) + " bytes): evict, or raise the arena");
  }
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<Memfd> memfd, Memfd::Create(next_id_++, memfd_bytes_));
  total_bytes_ += memfd_bytes_;
  return memfd;
}

Slab* DramArena::EmptySlabOfAnother() {
  // Whoever asks has none itself, so any will do.
  for (auto& [name, tenant] : tenants_) {
    if (name != kProbeTenant && !tenant.empty.empty()) return tenant.empty.begin()->second;
  }
  return nullptr;
}

void DramArena::PutEmpty(Slab* slab) {
  slab->state = Slab::State::kActive;
  tenants_[slab->tenant].empty[slab->memfd->id()] = slab;
}

void DramArena::Free(const ArenaSlot& slot) {
  Remains remains;
  {
    MutexLock lock(mu_);
    const auto found = slabs_.find(slot.memfd_id);
    KVF_CHECK(found != slabs_.end(), "slot of a memfd that is gone");
    Slab* slab = found->second.get();
    slab->GiveBack(slot.offset);
    slot_bytes_ -= slab->slot_bytes();
    if (slab->state == Slab::State::kActive) {
      if (slab->empty()) {
        DropPartial(slab);
        PutEmpty(slab);
      } else {
        tenants_[slab->tenant].partial[slab->slot_bytes()][slot.memfd_id] = slab;
      }
      return;
    }
    if (!slab->empty()) return;
    if (slab->wanted_by == slab->tenant) {
      PutEmpty(slab);
    } else {
      Close(slab, remains);
    }
  }
  SchedulePrefault();
}

MutableByteSpan DramArena::BytesAt(const ArenaSlot& slot) const {
  MutexLock lock(mu_);
  const auto found = slabs_.find(slot.memfd_id);
  KVF_CHECK(found != slabs_.end(), "slot of a memfd that is gone");
  return {found->second->memfd->data() + slot.offset, slot.bytes};
}

void DramArena::Close(Slab* slab, Remains& remains) {
  const std::uint64_t id = slab->memfd->id();
  tenants_[slab->tenant].empty.erase(id);
  slab->state = Slab::State::kClosing;
  slab->since = clock_.Now();
  ++closed_memfds_;
  if (slab->mappers.empty()) {
    Forget(id, remains);
  } else if (observer_ != nullptr) {
    observer_->OnClosing(id, {slab->mappers.begin(), slab->mappers.end()});
  }
}

void DramArena::Forget(std::uint64_t memfd_id, Remains& remains) {
  const auto found = slabs_.find(memfd_id);
  remains.push_back(found->second->memfd);
  total_bytes_ -= found->second->memfd->size_bytes();
  slabs_.erase(found);
}

void DramArena::Register(ArenaUser* user) {
  MutexLock lock(users_mu_);
  users_.push_back(user);
}

void DramArena::Unregister(ArenaUser* user) {
  MutexLock lock(users_mu_);
  std::erase(users_, user);
}

void DramArena::Reclaim(const std::string& tenant) {
  MutexLock users(users_mu_);
  // What was in flight when these began to be emptied has arrived since.
  for (const std::uint64_t memfd_id : Emptying()) {
    for (ArenaUser* user : users_) user->EmptyMemfd(memfd_id);
  }
  if (!MayEmptyAnother()) return;
  std::map<std::uint64_t, ArenaUser::Warmth> warmth;
  for (const ArenaUser* user : users_) user->AddWarmth(warmth);
  const std::optional<std::uint64_t> coldest = EmptyColdest(warmth, tenant);
  if (!coldest.has_value()) return;
  for (ArenaUser* user : users_) user->EmptyMemfd(*coldest);
}

std::vector<std::uint64_t> DramArena::Emptying() const {
  std::vector<std::uint64_t> ids;
  MutexLock lock(mu_);
  for (const auto& [id, slab] : slabs_) {
    if (slab->state == Slab::State::kEmptying) ids.push_back(id);
  }
  return ids;
}

bool DramArena::MayEmptyAnother() const {
  MutexLock lock(mu_);
  std::size_t emptying = 0;
  for (const auto& [id, slab] : slabs_) {
    if (slab->state == Slab::State::kActive) continue;
    ++emptying;
    // One that hangs on a lease or a laggard may take its time; no second one before that.
    if (clock_.Now() - slab->since < kUnmapGrace) return false;
  }
  return emptying < kMaxEmptying;
}

std::optional<std::uint64_t> DramArena::EmptyColdest(
    const std::map<std::uint64_t, ArenaUser::Warmth>& warmth, const std::string& wanted_by) {
  MutexLock lock(mu_);
  Slab* coldest = nullptr;
  std::int64_t coldest_us = INT64_MAX;
  for (const auto& [id, warm] : warmth) {
    const auto found = slabs_.find(id);
    if (found == slabs_.end()) continue;
    Slab* slab = found->second.get();
    if (slab->state != Slab::State::kActive || slab->empty()) continue;
    if (slab->tenant == kProbeTenant || warm.newest_touch_us >= coldest_us) continue;
    coldest = slab;
    coldest_us = warm.newest_touch_us;
  }
  if (coldest == nullptr) return std::nullopt;
  const std::uint64_t id = coldest->memfd->id();
  DropPartial(coldest);
  coldest->state = Slab::State::kEmptying;
  coldest->since = clock_.Now();
  coldest->wanted_by = wanted_by;
  return id;
}

}  // namespace kvfabric
