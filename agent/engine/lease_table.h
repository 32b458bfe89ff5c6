#pragma once

// LeaseTable: sessions -> leases -> pins. A lease keeps its blocks readable until it is released,
// its time (10 s, renewable) is over or its session ends: so a client that died or forgets
// cannot pin memory for ever. One table an agent, for local clients, gRPC clients and peers
// alike.
//
// Owned by the cluster node; any thread may call; no call blocks. Time comes from the clock: an
// expired lease is gone for Find and Renew at once, its pins at the next ExpireNow (the owner's
// timer, every 250 ms or so).
//
// Bounds: bytes pinned by one session in one pool <= 25 %, by all sessions <= 50 %
// of the pool's tier, each block counted once however many leases name it; pins by count besides.
// Beyond them nothing is granted: the caller answers a miss with reason lease_budget.
// Lock order: mu_ is a leaf; pins and companions are dropped after it is released, because their
// destructors take locks of the engine and of peers.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/engine/cache_engine.h"
#include "agent/engine/pin_ledger.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric {

struct LeaseTableOptions {
  std::chrono::milliseconds ttl{10'000};
  std::uint32_t session_percent = 25;
  std::uint32_t total_percent = 50;
  std::size_t max_pins_per_session = std::size_t{1} << 18U;
  std::size_t max_pins = std::size_t{1} << 20U;
};

struct LeaseTableStats {
  std::size_t sessions = 0;
  std::size_t leases = 0;
  std::size_t pins = 0;            // of all leases; a block in two leases counts twice
  std::uint64_t pinned_bytes = 0;  // distinct
  std::uint64_t refused = 0;       // grants cut by a budget, since start
  std::uint64_t expired = 0;       // leases that ended by time, since start
};

class LeaseTable {
 public:
  using SessionId = std::uint64_t;
  using LeaseId = std::uint64_t;  // never 0, never used again, unique over all sessions

  explicit LeaseTable(const Clock& clock, LeaseTableOptions options = {});
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;  // a copy would count pins twice
  LeaseTable& operator=(const LeaseTable&) = delete;

  // Size of a pool's tier, from which its budgets follow; 0 when the pool goes. Until it is set
  // nothing of that pool is granted.
  void SetPoolBytes(const std::string& pool_uid, std::uint64_t tier_bytes) EXCLUDES(mu_);

  SessionId OpenSession() EXCLUDES(mu_);
  // Ends all its leases. Unknown ids are ignored.
  void CloseSession(SessionId session) EXCLUDES(mu_);

  // All or nothing; may be empty (a lease that has blocks at peers only). nullopt = unknown
  // session or budget.
  std::optional<LeaseId> Grant(SessionId session, std::vector<PinnedBlock> blocks) EXCLUDES(mu_);
  // The longest prefix of `blocks` that fits the budgets; the rest is unpinned. lease = 0 when the
  // session is unknown or nothing fits.
  struct Prefix {
    LeaseId lease = 0;
    std::size_t granted = 0;
  };
  Prefix GrantPrefix(SessionId session, std::vector<PinnedBlock> blocks) EXCLUDES(mu_);
  // False = no such lease, or budget.
  bool Add(SessionId session, LeaseId lease, PinnedBlock block) EXCLUDES(mu_);
  // `companion` lives as long as the lease, e.g. what releases leases at other holders.
  bool Attach(SessionId session, LeaseId lease, std::shared_ptr<void> companion) EXCLUDES(mu_);

  // O(1) when blocks are asked for in the order they were granted, else O(log n).
  std::optional<PinnedBlock> Find(SessionId session, LeaseId lease, const KeyId& id) EXCLUDES(mu_);
  bool Has(SessionId session, LeaseId lease) const EXCLUDES(mu_);

  // False = it was gone already.
  bool Release(SessionId session, LeaseId lease) EXCLUDES(mu_);
  // One ttl from now.
  bool Renew(SessionId session, LeaseId lease) EXCLUDES(mu_);
  // Drops the pins of leases whose time is over; returns how many leases.
  std::size_t ExpireNow() EXCLUDES(mu_);

  LeaseTableStats stats() const EXCLUDES(mu_);
  std::chrono::milliseconds ttl() const { return options_.ttl; }

 private:
  struct Pool {
    std::uint64_t tier_bytes = 0;
    std::uint64_t pinned_bytes = 0;
  };
  struct Lease {
    SessionId session = 0;
    Clock::TimePoint expires;
    std::vector<PinnedBlock> blocks;  // in the order granted
    std::vector<std::shared_ptr<void>> companions;
    std::size_t next = 0;              // where the last Find ended: reads come in order
    std::vector<std::uint32_t> by_id;  // blocks sorted by id; made by the first Find out of order
  };
  struct Budget {
    Pool* pool = nullptr;
    std::uint64_t* session_bytes = nullptr;  // pinned, distinct
  };
  struct Session {
    std::map<std::string, std::uint64_t> pool_bytes;
    NamespaceRef last_ns;  // of the last pin looked at: those of a request are alike
    Budget last;
    PinLedger pinned;
    std::size_t pins = 0;
    std::set<LeaseId> leases;
  };
  // What to destroy after mu_ is released.
  using Remains = std::vector<Lease>;

  Budget BudgetOf(Session& session, const PinnedBlock& block) REQUIRES(mu_);
  std::size_t TakePins(Session& session, const std::vector<PinnedBlock>& blocks) REQUIRES(mu_);
  bool TakePin(Session& session, const PinnedBlock& block) REQUIRES(mu_);
  void DropPin(Session& session, const PinnedBlock& block) REQUIRES(mu_);
  Prefix GrantLocked(SessionId session, std::vector<PinnedBlock>& blocks, bool whole) REQUIRES(mu_);
  Lease* FindLive(SessionId session, LeaseId lease) REQUIRES(mu_);
  void End(LeaseId lease, Remains& remains) REQUIRES(mu_);
  static const PinnedBlock* FindBlock(Lease& lease, const KeyId& id);

  const Clock& clock_;  // borrowed; outlives this
  const LeaseTableOptions options_;

  mutable Mutex mu_;
  SessionId next_session_ GUARDED_BY(mu_) = 1;
  LeaseId next_lease_ GUARDED_BY(mu_) = 1;
  std::map<std::string, Pool> pools_ GUARDED_BY(mu_);  // never shrinks: one per pool seen
  std::unordered_map<SessionId, Session> sessions_ GUARDED_BY(mu_);
  std::unordered_map<LeaseId, Lease> leases_ GUARDED_BY(mu_);
  std::set<std::pair<Clock::TimePoint, LeaseId>> by_expiry_ GUARDED_BY(mu_);
  PinLedger pinned_ GUARDED_BY(mu_);
  LeaseTableStats stats_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
