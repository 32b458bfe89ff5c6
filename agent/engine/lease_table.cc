#include "agent/engine/lease_table.h"

#include <algorithm>
#include <numeric>

namespace kvfabric {

namespace {

std::uint64_t Percent(std::uint64_t bytes, std::uint32_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;  // no overflow near 2^64
}

}  // namespace

LeaseTable::LeaseTable(const Clock& clock, LeaseTableOptions options)
    : clock_(clock), options_(options) {}

LeaseTable::~LeaseTable() = default;

void LeaseTable::SetPoolBytes(const std::string& pool_uid, std::uint64_t tier_bytes) {
  MutexLock lock(mu_);
  pools_[pool_uid].tier_bytes = tier_bytes;
}

LeaseTable::SessionId LeaseTable::OpenSession() {
  MutexLock lock(mu_);
  const SessionId id = next_session_++;
  sessions_[id];
  return id;
}

void LeaseTable::CloseSession(SessionId session) {
  Remains remains;
  MutexLock lock(mu_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const std::set<LeaseId> leases = found->second.leases;
  for (const LeaseId lease : leases) End(lease, remains);
  sessions_.erase(session);
}

std::optional<LeaseTable::LeaseId> LeaseTable::Grant(SessionId session,
                                                     std::vector<PinnedBlock> blocks) {
  MutexLock lock(mu_);
  const Prefix prefix = GrantLocked(session, blocks, true);
  if (prefix.lease == 0) return std::nullopt;
  return prefix.lease;
}

LeaseTable::Prefix LeaseTable::GrantPrefix(SessionId session, std::vector<PinnedBlock> blocks) {
  MutexLock lock(mu_);  // released before `blocks`, a parameter, is destroyed
  return GrantLocked(session, blocks, false);
}

LeaseTable::Prefix LeaseTable::GrantLocked(SessionId session, std::vector<PinnedBlock>& blocks,
                                           bool whole) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  Session& owner = found->second;
  const std::size_t fit = TakePins(owner, blocks);
  if (fit < blocks.size()) ++stats_.refused;
  if (fit < blocks.size() && (whole || fit == 0)) {
    for (std::size_t i = 0; i < fit; ++i) DropPin(owner, blocks[i]);
    return {};
  }
  const LeaseId id = next_lease_++;
  Lease& lease = leases_[id];
  lease.session = session;
  lease.expires = clock_.Now() + options_.ttl;
  if (fit == blocks.size()) {
    lease.blocks = std::move(blocks);
    blocks.clear();
  } else {
    const auto end = blocks.begin() + static_cast<std::ptrdiff_t>(fit);
    lease.blocks.assign(std::make_move_iterator(blocks.begin()), std::make_move_iterator(end));
  }
  owner.leases.insert(id);
  by_expiry_.insert({lease.expires, id});
  return {.lease = id, .granted = fit};
}

bool LeaseTable::Add(SessionId session, LeaseId lease, PinnedBlock block) {
  MutexLock lock(mu_);
  Lease* live = FindLive(session, lease);
  if (live == nullptr) return false;
  if (!TakePin(sessions_[session], block)) {
    ++stats_.refused;
    return false;
  }
  live->blocks.push_back(std::move(block));
  live->by_id.clear();
  return true;
}

bool LeaseTable::Attach(SessionId session, LeaseId lease, std::shared_ptr<void> companion) {
  MutexLock lock(mu_);
  Lease* live = FindLive(session, lease);
  if (live == nullptr) return false;
  live->companions.push_back(std::move(companion));
  return true;
}

std::optional<PinnedBlock> LeaseTable::Find(SessionId session, LeaseId lease, const KeyId& id) {
  MutexLock lock(mu_);
  Lease* live = FindLive(session, lease);
  if (live == nullptr) return std::nullopt;
  const PinnedBlock* block = FindBlock(*live, id);
  if (block == nullptr) return std::nullopt;
  return *block;
}

const PinnedBlock* LeaseTable::FindBlock(Lease& lease, const KeyId& id) {
  const std::vector<PinnedBlock>& blocks = lease.blocks;
  if (blocks.empty()) return nullptr;
  const std::size_t next = lease.next % blocks.size();
  if (blocks[next].id() == id) {
    lease.next = next + 1;
    return &blocks[next];
  }
  if (lease.by_id.empty()) {
    lease.by_id.resize(blocks.size());
    std::iota(lease.by_id.begin(), lease.by_id.end(), 0U);
    std::ranges::sort(lease.by_id, {}, [&blocks](std::uint32_t i) { return blocks[i].id(); });
  }
  const auto found = std::ranges::lower_bound(
      lease.by_id, id, {}, [&blocks](std::uint32_t i) { return blocks[i].id(); });
  if (found == lease.by_id.end() || blocks[*found].id() != id) return nullptr;
  lease.next = *found + std::size_t{1};
  return &blocks[*found];
}

bool LeaseTable::Has(SessionId session, LeaseId lease) const {
  MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  return found != leases_.end() && found->second.session == session &&
         found->second.expires > clock_.Now();
}

bool LeaseTable::Release(SessionId session, LeaseId lease) {
  Remains remains;
  MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session) return false;
  const bool live = found->second.expires > clock_.Now();
  End(lease, remains);
  return live;
}

bool LeaseTable::Renew(SessionId session, LeaseId lease) {
  MutexLock lock(mu_);
  Lease* live = FindLive(session, lease);
  if (live == nullptr) return false;
  by_expiry_.erase({live->expires, lease});
  live->expires = clock_.Now() + options_.ttl;
  by_expiry_.insert({live->expires, lease});
  return true;
}

std::size_t LeaseTable::ExpireNow() {
  Remains remains;
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.Now();
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    End(by_expiry_.begin()->second, remains);
  }
  stats_.expired += remains.size();
  return remains.size();
}

LeaseTableStats LeaseTable::stats() const {
  MutexLock lock(mu_);
  LeaseTableStats stats = stats_;
  stats.sessions = sessions_.size();
  stats.leases = leases_.size();
  for (const auto& [uid, pool] : pools_) stats.pinned_bytes += pool.pinned_bytes;
  return stats;
}

LeaseTable::Lease* LeaseTable::FindLive(SessionId session, LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session) return nullptr;
  return found->second.expires > clock_.Now() ? &found->second : nullptr;
}

void LeaseTable::End(LeaseId lease, Remains& remains) {
  const auto found = leases_.find(lease);
  Session& session = sessions_[found->second.session];
  for (const PinnedBlock& block : found->second.blocks) DropPin(session, block);
  session.leases.erase(lease);
  by_expiry_.erase({found->second.expires, lease});
  remains.push_back(std::move(found->second));
  leases_.erase(found);
}

LeaseTable::Budget LeaseTable::BudgetOf(Session& session, const PinnedBlock& block) {
  const NamespaceRef& ns = block.ns();
  if (ns != session.last_ns) {
    session.last_ns = ns;
    session.last = {.pool = &pools_[ns->pool_uid],
                    .session_bytes = &session.pool_bytes[ns->pool_uid]};
  }
  return session.last;
}

std::size_t LeaseTable::TakePins(Session& session, const std::vector<PinnedBlock>& blocks) {
  std::size_t taken = 0;
  while (taken < blocks.size() && TakePin(session, blocks[taken])) ++taken;
  return taken;
}

bool LeaseTable::TakePin(Session& session, const PinnedBlock& block) {
  if (!block || session.pins >= options_.max_pins_per_session || stats_.pins >= options_.max_pins) {
    return false;
  }
  const std::byte* const at = block.bytes().data();
  const std::uint64_t bytes = block.bytes().size();
  const Budget budget = BudgetOf(session, block);
  const std::uint64_t tier = budget.pool->tier_bytes;
  const bool new_here = !session.pinned.Contains(at);
  if (new_here && *budget.session_bytes + bytes > Percent(tier, options_.session_percent)) {
    return false;
  }
  const bool new_at_all = new_here && !pinned_.Contains(at);
  if (new_at_all && budget.pool->pinned_bytes + bytes > Percent(tier, options_.total_percent)) {
    return false;
  }
  if (session.pinned.Add(at)) *budget.session_bytes += bytes;
  if (pinned_.Add(at)) budget.pool->pinned_bytes += bytes;
  ++session.pins;
  ++stats_.pins;
  return true;
}

void LeaseTable::DropPin(Session& session, const PinnedBlock& block) {
  const std::byte* const at = block.bytes().data();
  const std::uint64_t bytes = block.bytes().size();
  const Budget budget = BudgetOf(session, block);
  if (session.pinned.Remove(at)) *budget.session_bytes -= bytes;
  if (pinned_.Remove(at)) budget.pool->pinned_bytes -= bytes;
  --session.pins;
  --stats_.pins;
}

}  // namespace kvfabric
