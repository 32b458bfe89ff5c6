#include "agent/cluster/remote_lease.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

RemoteLease::~RemoteLease() {
  std::vector<Part> parts;
  {
    MutexLock lock(mu_);
    parts.swap(parts_);
    for (Superseded& old : superseded_) parts.push_back(std::move(old.part));
  }
  ReleaseParts(parts);
}

void RemoteLease::ReleaseParts(const std::vector<Part>& parts) const {
  for (const Part& part : parts) {
    if (const LinkRef link = peers_.Link(part.holder); link != nullptr) {
      link->Release({part.lease_id});
    }
  }
}

void RemoteLease::IndexLocked() {
  places_.clear();
  for (const Part& part : parts_) {
    for (const Grant& grant : part.grants) {
      places_[grant.id] = Place{part.holder, part.lease_id, grant.length_bytes};
    }
  }
}

void RemoteLease::Add(Part part) {
  MutexLock lock(mu_);
  for (const Grant& grant : part.grants) {
    places_[grant.id] = Place{part.holder, part.lease_id, grant.length_bytes};
  }
  parts_.push_back(std::move(part));
}

std::optional<RemoteLease::Place> RemoteLease::Find(const KeyId& id) const {
  MutexLock lock(mu_);
  const auto found = places_.find(id);
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

bool RemoteLease::Prune(const std::function<bool(const KeyId&)>& keep) {
  std::vector<Part> dropped;
  bool any = false;
  {
    MutexLock lock(mu_);
    const auto used = [&keep](const Part& part) {
      return std::ranges::any_of(part.grants, [&keep](const Grant& g) { return keep(g.id); });
    };
    const auto first = std::stable_partition(parts_.begin(), parts_.end(), used);
    dropped.assign(std::make_move_iterator(first), std::make_move_iterator(parts_.end()));
    parts_.erase(first, parts_.end());
    IndexLocked();
    any = !parts_.empty();
  }
  ReleaseParts(dropped);
  return any;
}

std::vector<RemoteLease::Part> RemoteLease::Parts() const {
  MutexLock lock(mu_);
  return parts_;
}

bool RemoteLease::BeginRenewal(Clock::TimePoint now, Clock::Duration ttl) {
  std::vector<Part> dropped;
  {
    MutexLock lock(mu_);
    if (now - renewed_at_ < std::min<Clock::Duration>(kRenewalPause, ttl / 4)) return false;
    renewed_at_ = now;
    while (!superseded_.empty() && now - superseded_.front().since >= ttl / 4) {
      dropped.push_back(std::move(superseded_.front().part));
      superseded_.pop_front();
    }
  }
  ReleaseParts(dropped);
  return true;
}

void RemoteLease::Replace(std::uint64_t old_lease_id, Part fresh, Clock::TimePoint now) {
  std::vector<Part> dropped;
  {
    MutexLock lock(mu_);
    const auto old = std::ranges::find_if(parts_, [&](const Part& part) {
      return part.holder == fresh.holder && part.lease_id == old_lease_id;
    });
    if (old == parts_.end()) {
      dropped.push_back(std::move(fresh));  // ended meanwhile
    } else {
      superseded_.push_back({std::exchange(*old, std::move(fresh)), now});
      IndexLocked();
    }
  }
  ReleaseParts(dropped);
}

void RemoteLeaseBook::Enter(std::uint64_t lease_id, const std::shared_ptr<RemoteLease>& lease) {
  MutexLock lock(mu_);
  if (leases_.size() >= sweep_at_) {
    std::erase_if(leases_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<std::size_t>(64, leases_.size() * 2);
  }
  leases_[lease_id] = lease;
}

std::shared_ptr<RemoteLease> RemoteLeaseBook::Find(std::uint64_t lease_id) const {
  MutexLock lock(mu_);
  const auto found = leases_.find(lease_id);
  return found == leases_.end() ? nullptr : found->second.lock();
}

}  // namespace kvfabric
