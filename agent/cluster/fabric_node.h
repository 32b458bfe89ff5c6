#pragma once

// FabricNode: this node's part of the fabric. Implements what clients can do (Fabric) and what the
// operator can order (ControlPlanePort); peer_handler() answers peers.
//
// Owned by main; any thread. What the environment names is borrowed and outlives it. Destruction:
// timers end, links close (their calls complete), what is under way completes, pools go; nobody may
// call any more, peers' server side included.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/cluster/agent_state.h"
#include "agent/cluster/control_desk.h"
#include "agent/cluster/control_plane_port.h"
#include "agent/cluster/fabric.h"
#include "agent/cluster/node_context.h"
#include "agent/cluster/peer_desk.h"
#include "agent/cluster/peer_link.h"
#include "agent/cluster/pool_table.h"

namespace kvfabric {

class FabricNode final : public Fabric, public ControlPlanePort {
 public:
  struct Options {
    std::string node_name;
    std::size_t directory_bytes_per_pool = std::size_t{256} << 20U;
    LeaseTableOptions leases;
    PeerSetOptions peers;
  };
  struct Environment {
    const Clock* clock = nullptr;
    Timer* timer = nullptr;
    Executor* background = nullptr;
    Executor* copy = nullptr;
    MetricsRegistry* metrics = nullptr;
    PeerConnector* connector = nullptr;
    const AgentState* state = nullptr;
    std::function<Result<std::unique_ptr<CacheEngine>>(CacheEngine::Options)> make_engine;
  };

  // Starts with the pools and maps of the last run.
  FabricNode(Options options, Environment environment);
  ~FabricNode() override;
  FabricNode(const FabricNode&) = delete;  // one node, one identity
  FabricNode& operator=(const FabricNode&) = delete;

  PeerHandler& peer_handler() { return desk_; }

  // Fabric
  std::uint64_t boot_epoch() const override { return context_.boot_epoch; }
  Result<NamespaceRef> ResolveNamespace(const std::string& pool, const std::string& tenant,
                                        const std::string& fingerprint,
                                        NamespaceKind kind) override;
  std::uint64_t map_epoch(const std::string& pool_uid) const override;
  SessionId OpenSession(const std::string& tenant) override EXCLUDES(mu_);
  void CloseSession(SessionId session) override EXCLUDES(mu_);
  void Lookup(SessionId session, LookupArgs args, Deadline deadline,
              Completion<LookupAnswer> done) override;
  void Get(SessionId session, GetArgs args, Deadline deadline, Completion<GetAnswer> done) override;
  void Put(SessionId session, PutArgs args, Deadline deadline, Completion<PutAnswer> done) override;
  void Release(SessionId session, const std::vector<std::uint64_t>& lease_ids) override;
  bool Renew(SessionId session, std::uint64_t lease_id) override;
  void Delete(SessionId session, GetArgs args, Deadline deadline,
              Completion<std::uint32_t> done) override;
  std::vector<PoolStatAnswer> Stat(SessionId session) const override;

  // ControlPlanePort
  PeerIdentity identity() const override;
  Status ApplyPools(std::uint64_t term, std::vector<PoolSpecForAgent> pools) override
      EXCLUDES(drain_mu_);
  Status ApplyMap(std::string_view pool_uid, std::string_view shard_map) override;
  Status StartDrain(std::uint64_t term, std::chrono::seconds deadline) override EXCLUDES(drain_mu_);
  Status StopDrain(std::uint64_t term) override EXCLUDES(drain_mu_);
  std::vector<PoolReport> PoolReports() const override;
  DrainReport DrainProgress() const override;

  // For tests and the self-test.
  LeaseTableStats lease_stats() const { return leases_.stats(); }
  const PoolTable& pools() const { return pools_; }
  PeerSet& peers() { return peers_; }
  std::size_t peer_session_count() const { return desk_.session_count(); }

 private:
  static NodeContext MakeContext(FabricNode& node, const Options& options,
                                 const Environment& environment);
  // The pool, if the session is known and the namespace its tenant's.
  Result<PoolRef> Admit(SessionId session, const NamespaceRef& ns) const EXCLUDES(mu_);
  std::string TenantOf(SessionId session) const EXCLUDES(mu_);
  void RenewRemote(std::uint64_t lease_id);
  void StartDrainOf(PoolNode& pool) REQUIRES(drain_mu_);
  void Tick();
  void SlowTick();

  const Environment environment_;
  // Provide their own synchronisation. Order: later ones use earlier ones.
  NodeNames names_;
  NamespaceTable namespaces_;
  PeerSet peers_;
  RemoteLeaseBook remote_leases_;
  LeaseTable leases_;
  Gate gate_;
  const NodeContext context_;
  PoolTable pools_;
  PeerDesk desk_;
  ControlDesk control_;

  mutable Mutex mu_;
  std::unordered_map<SessionId, std::string> tenants_ GUARDED_BY(mu_);

  Mutex drain_mu_;  // before the pools' and drainers' own locks
  Clock::TimePoint drain_began_ GUARDED_BY(drain_mu_){};
  std::chrono::seconds drain_budget_ GUARDED_BY(drain_mu_){0};  // 0: each pool's own

  Timer::Id tick_ = 0;
  Timer::Id slow_tick_ = 0;
};

}  // namespace kvfabric
