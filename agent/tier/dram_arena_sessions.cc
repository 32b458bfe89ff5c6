// The half of DramArena that faces sessions and the machine: who has mapped what, and prefault.

#include <utility>

#include "agent/tier/dram_arena.h"
#include "common/log.h"

namespace kvfabric {

std::vector<MemfdRef> DramArena::MemfdsOf(const std::string& tenant) const {
  std::map<std::uint64_t, MemfdRef> memfds;
  {
    MutexLock lock(mu_);
    for (const auto& [id, slab] : slabs_) {
      if (slab->tenant == tenant && slab->state != Slab::State::kClosing) memfds[id] = slab->memfd;
    }
  }
  std::vector<MemfdRef> oldest_first;
  for (auto& [id, memfd] : memfds) oldest_first.push_back(std::move(memfd));
  return oldest_first;
}

void DramArena::SetObserver(ArenaObserver* observer) {
  MutexLock lock(mu_);
  observer_ = observer;
}

bool DramArena::OnMapped(std::uint64_t session, std::uint64_t memfd_id) {
  MutexLock lock(mu_);
  const auto found = slabs_.find(memfd_id);
  if (found == slabs_.end() || found->second->state == Slab::State::kClosing) return false;
  found->second->mappers.insert(session);
  return true;
}

void DramArena::OnUnmapped(std::uint64_t session, std::uint64_t memfd_id) {
  Remains remains;
  {
    MutexLock lock(mu_);
    const auto found = slabs_.find(memfd_id);
    if (found == slabs_.end()) return;
    Slab& slab = *found->second;
    slab.mappers.erase(session);
    if (slab.state != Slab::State::kClosing || !slab.mappers.empty()) return;
    Forget(memfd_id, remains);
  }
  SchedulePrefault();
}

void DramArena::OnSessionEnded(std::uint64_t session) {
  std::vector<std::uint64_t> mapped;
  {
    MutexLock lock(mu_);
    for (const auto& [id, slab] : slabs_) {
      if (slab->mappers.contains(session)) mapped.push_back(id);
    }
  }
  for (const std::uint64_t memfd_id : mapped) OnUnmapped(session, memfd_id);
}

std::vector<DramArena::Laggard> DramArena::Laggards() const {
  std::vector<Laggard> laggards;
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.Now();
  for (const auto& [id, slab] : slabs_) {
    if (slab->state != Slab::State::kClosing || now - slab->since < kUnmapGrace) continue;
    for (const std::uint64_t session : slab->mappers) {
      laggards.push_back({.session = session, .memfd_id = id});
    }
  }
  return laggards;
}

bool DramArena::ready() const {
  MutexLock lock(mu_);
  return ready_;
}

Status DramArena::prefault_status() const {
  MutexLock lock(mu_);
  return prefault_status_;
}

ArenaStats DramArena::stats() const {
  MutexLock lock(mu_);
  ArenaStats stats{.cap_bytes = cap_bytes_,
                   .memfd_bytes = total_bytes_,
                   .spare_bytes = spare_.size() * memfd_bytes_,
                   .closing_bytes = 0,
                   .slot_bytes = slot_bytes_,
                   .closed_memfds = closed_memfds_};
  for (const auto& [id, slab] : slabs_) {
    if (slab->state == Slab::State::kClosing) stats.closing_bytes += slab->memfd->size_bytes();
  }
  return stats;
}

bool DramArena::BeginPrefault() {
  MutexLock lock(mu_);
  if (background_ == nullptr || prefaulting_ || !prefault_status_.ok()) return false;
  if (total_bytes_ + memfd_bytes_ > cap_bytes_) {
    ready_ = true;
    return false;
  }
  prefaulting_ = true;
  return true;
}

void DramArena::SchedulePrefault() {
  if (!BeginPrefault() || background_->Submit(leash_.Bind([this] { Prefault(); }))) return;
  MutexLock lock(mu_);
  prefaulting_ = false;  // the queue is full: what comes back now is made present by its first use
}

void DramArena::Prefault() {
  do {
    PrefaultOne();
    if (!BeginPrefault()) return;
    // One memfd a task, so that evictions get their turn; unless there is no room for a task.
  } while (!background_->Submit(leash_.Bind([this] { Prefault(); })));
}

void DramArena::PrefaultOne() {
  std::uint64_t id = 0;
  {
    MutexLock lock(mu_);
    if (total_bytes_ + memfd_bytes_ <= cap_bytes_) {
      id = next_id_++;
      total_bytes_ += memfd_bytes_;
    }
  }
  Status status;
  std::shared_ptr<Memfd> memfd;
  if (id != 0) {
    auto created = Memfd::Create(id, memfd_bytes_);
    status = created.ok() ? (*created)->Prefault() : created.status();
    if (status.ok()) memfd = std::move(created).value();
  }
  {
    MutexLock lock(mu_);
    prefaulting_ = false;
    if (memfd != nullptr) spare_.push_back(std::move(memfd));
    if (!status.ok()) {
      total_bytes_ -= memfd_bytes_;
      prefault_status_ = status;
    }
  }
  if (!status.ok()) LogError("cannot prefault the arena", {{"cause", status.message()}});
}

}  // namespace kvfabric
