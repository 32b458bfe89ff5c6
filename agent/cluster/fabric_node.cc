#include "agent/cluster/fabric_node.h"

#include <algorithm>
#include <utility>

#include "agent/cluster/delete_call.h"
#include "agent/cluster/get_call.h"
#include "agent/cluster/lookup_call.h"
#include "agent/cluster/put_call.h"
#include "common/identity.h"

namespace kvfabric {

namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kSlowTick{250};
constexpr std::string_view kAdmin = "admin";

}  // namespace

NodeContext FabricNode::MakeContext(FabricNode& node, const Options& options,
                                    const Environment& environment) {
  NodeContext context;
  context.clock = environment.clock;
  context.timer = environment.timer;
  context.background = environment.background;
  context.copy = environment.copy;
  context.metrics = environment.metrics;
  context.peers = &node.peers_;
  context.names = &node.names_;
  context.namespaces = &node.namespaces_;
  context.leases = &node.leases_;
  context.remote_leases = &node.remote_leases_;
  context.self = {options.node_name, environment.state->agent_uid(),
                  node.names_.Intern(options.node_name)};
  context.boot_epoch = environment.state->boot_epoch();
  context.directory_bytes = options.directory_bytes_per_pool;
  context.make_engine = environment.make_engine;
  context.refresh_map = [&node](const std::string& pool_uid, NodeIndex peer, Deadline deadline,
                                std::function<void()> done) {
    node.control_.RefreshMap(pool_uid, peer, deadline, std::move(done));
  };
  return context;
}

FabricNode::FabricNode(Options options, Environment environment)
    : environment_(std::move(environment)),
      peers_({.clock = environment_.clock,
              .background = environment_.background,
              .connector = environment_.connector,
              .names = &names_,
              .metrics = environment_.metrics},
             options.peers),
      leases_(*environment_.clock, options.leases),
      context_(MakeContext(*this, options, environment_)),
      desk_(context_, pools_),
      control_(context_, pools_, gate_, environment_.state->directory()) {
  peers_.SetListener([this](NodeIndex peer, bool up) {
    for (const PoolRef& pool : pools_.All()) pool->OnPeerChanged(peer, up);
  });
  control_.Restore();
  tick_ = environment_.timer->Every(kTick, [this] { Tick(); });
  slow_tick_ = environment_.timer->Every(kSlowTick, [this] { SlowTick(); });
}

FabricNode::~FabricNode() {
  environment_.timer->CancelAndWait(tick_);
  environment_.timer->CancelAndWait(slow_tick_);
  peers_.CloseAll();
  gate_.CloseAndWait();
  std::unordered_map<SessionId, std::string> tenants;
  {
    MutexLock lock(mu_);
    tenants.swap(tenants_);
  }
  for (const auto& [session, tenant] : tenants) leases_.CloseSession(session);
  pools_.Clear();
}

void FabricNode::Tick() {
  peers_.Tick();
  for (const PoolRef& pool : pools_.All()) pool->Tick();
}

void FabricNode::SlowTick() {
  std::shared_ptr<Gate::Pass> pass = gate_.EnterShared();
  if (!pass) return;
  // Refused: a quarter of a second later.
  static_cast<void>(environment_.background->Submit([this, pass] {
    desk_.RefreshState();
    leases_.ExpireNow();
    pools_.Reap();
  }));
}

Result<NamespaceRef> FabricNode::ResolveNamespace(const std::string& pool,
                                                  const std::string& tenant,
                                                  const std::string& fingerprint,
                                                  NamespaceKind kind) {
  const PoolRef found = pools_.FindByName(pool);
  if (found == nullptr) return NotFound("pool " + pool + ": not on this node");
  Namespace ns;
  ns.pool_uid = found->uid();
  ns.tenant = tenant;
  ns.kind = kind;
  ns.digest = MakeNamespaceDigest(found->uid(), tenant, fingerprint);
  return namespaces_.Intern(ns);
}

std::uint64_t FabricNode::map_epoch(const std::string& pool_uid) const {
  return desk_.MapEpoch(pool_uid);
}

SessionId FabricNode::OpenSession(const std::string& tenant) {
  const SessionId session = leases_.OpenSession();
  MutexLock lock(mu_);
  tenants_.emplace(session, tenant);
  return session;
}

void FabricNode::CloseSession(SessionId session) {
  {
    MutexLock lock(mu_);
    if (tenants_.erase(session) == 0) return;
  }
  leases_.CloseSession(session);
}

std::string FabricNode::TenantOf(SessionId session) const {
  MutexLock lock(mu_);
  const auto found = tenants_.find(session);
  return found == tenants_.end() ? std::string() : found->second;
}

Result<PoolRef> FabricNode::Admit(SessionId session, const NamespaceRef& ns) const {
  if (ns == nullptr) return InvalidArgument("request: no namespace");
  {
    MutexLock lock(mu_);
    const auto found = tenants_.find(session);
    if (found == tenants_.end()) return Unauthenticated("session: unknown or closed");
    if (found->second != ns->tenant) {
      return PermissionDenied("namespace of tenant " + ns->tenant + ": not the session's tenant");
    }
  }
  PoolRef pool = pools_.Find(ns->pool_uid);
  if (pool == nullptr) return NotFound("pool " + ns->pool_uid + ": not on this node");
  return pool;
}

void FabricNode::Lookup(SessionId session, LookupArgs args, Deadline deadline,
                        Completion<LookupAnswer> done) {
  Result<PoolRef> pool = Admit(session, args.ns);
  if (!pool.ok()) return done(pool.status());
  LookupCall::Start(std::move(*pool), session, std::move(args), deadline, std::move(done));
}

void FabricNode::Get(SessionId session, GetArgs args, Deadline deadline,
                     Completion<GetAnswer> done) {
  Result<PoolRef> pool = Admit(session, args.ns);
  if (!pool.ok()) return done(pool.status());
  GetCall::Start(std::move(*pool), session, std::move(args), deadline, std::move(done));
}

void FabricNode::Put(SessionId session, PutArgs args, Deadline deadline,
                     Completion<PutAnswer> done) {
  Result<PoolRef> pool = Admit(session, args.ns);
  if (!pool.ok()) return done(pool.status());
  PutCall::Start(std::move(*pool), std::move(args), deadline, std::move(done));
}

void FabricNode::Delete(SessionId session, GetArgs args, Deadline deadline,
                        Completion<std::uint32_t> done) {
  Result<PoolRef> pool = Admit(session, args.ns);
  if (!pool.ok()) return done(pool.status());
  DeleteCall::Start(std::move(*pool), std::move(args), deadline, std::move(done));
}

void FabricNode::Release(SessionId session, const std::vector<std::uint64_t>& lease_ids) {
  for (const std::uint64_t lease : lease_ids) static_cast<void>(leases_.Release(session, lease));
}

bool FabricNode::Renew(SessionId session, std::uint64_t lease_id) {
  if (!leases_.Renew(session, lease_id)) return false;
  RenewRemote(lease_id);
  return true;
}

// A holder knows no renewal: the blocks are leased anew, then the old lease is released. What it
// does not grant again becomes a miss.
void FabricNode::RenewRemote(std::uint64_t lease_id) {
  const std::shared_ptr<RemoteLease> remote = remote_leases_.Find(lease_id);
  if (remote == nullptr || !remote->BeginRenewal(context_.clock->Now(), leases_.ttl())) return;
  for (const RemoteLease::Part& part : remote->Parts()) {
    const LinkRef link = peers_.Link(part.holder);
    if (link == nullptr) continue;
    LeaseRequest request;
    request.pool_uid = remote->pool_uid();
    for (const RemoteLease::Grant& grant : part.grants) request.ids.push_back(grant.id);
    link->Lease(std::move(request), Deadline::After(*context_.clock, leases_.ttl() / 2),
                [clock = context_.clock, remote, part](Result<LeaseReply> reply) {
                  if (!reply.ok() || reply->granted.size() != part.grants.size()) return;
                  RemoteLease::Part fresh{part.holder, reply->lease_id, {}};
                  for (std::size_t at = 0; at < part.grants.size(); ++at) {
                    if (reply->granted[at]) fresh.grants.push_back(part.grants[at]);
                  }
                  remote->Replace(part.lease_id, std::move(fresh), clock->Now());
                });
  }
}

std::vector<PoolStatAnswer> FabricNode::Stat(SessionId session) const {
  const std::string tenant = TenantOf(session);
  std::vector<PoolStatAnswer> answers;
  if (tenant.empty()) return answers;
  for (const PoolRef& pool : pools_.All()) {
    const SharedPoolSpec spec = pool->spec();
    const bool theirs = tenant == kAdmin || spec->tenants.empty() ||
                        std::ranges::any_of(spec->tenants, [&](const TenantQuota& q) {
                          return q.tenant == tenant;
                        });
    if (!theirs) continue;
    PoolStatAnswer answer;
    answer.pool_name = pool->name();
    answer.engine = pool->engine().Stats();
    answer.map_epoch = map_epoch(pool->uid());
    answer.leased_bytes = answer.engine.pinned_bytes;
    answers.push_back(std::move(answer));
  }
  return answers;
}

PeerIdentity FabricNode::identity() const {
  return {context_.self.node_name, context_.self.agent_uid, context_.boot_epoch};
}

Status FabricNode::ApplyPools(std::uint64_t term, std::vector<PoolSpecForAgent> pools) {
  const Status applied = control_.ApplyPools(term, std::move(pools));
  MutexLock lock(drain_mu_);
  if (!desk_.draining()) return applied;
  // The order to drain does not come again: it is for what was made since, too.
  for (const PoolRef& pool : pools_.All()) {
    if (!pool->drainer().Progress().active) StartDrainOf(*pool);
  }
  return applied;
}

Status FabricNode::ApplyMap(std::string_view pool_uid, std::string_view shard_map) {
  return control_.ApplyMap(pool_uid, shard_map);
}

Status FabricNode::StartDrain(std::uint64_t term, std::chrono::seconds deadline) {
  KVF_RETURN_IF_ERROR(control_.CheckTerm(term));
  MutexLock lock(drain_mu_);
  drain_began_ = context_.clock->Now();
  drain_budget_ = deadline;
  desk_.SetDraining(true);
  for (const PoolRef& pool : pools_.All()) StartDrainOf(*pool);
  return Status::Ok();
}

void FabricNode::StartDrainOf(PoolNode& pool) {
  const std::chrono::seconds budget =
      drain_budget_.count() > 0 ? drain_budget_ : pool.spec()->drain_timeout;
  pool.drainer().Start(Deadline::At(drain_began_ + budget));
}

Status FabricNode::StopDrain(std::uint64_t term) {
  KVF_RETURN_IF_ERROR(control_.CheckTerm(term));
  MutexLock lock(drain_mu_);
  desk_.SetDraining(false);
  for (const PoolRef& pool : pools_.All()) pool->drainer().Stop();
  return Status::Ok();
}

std::vector<PoolReport> FabricNode::PoolReports() const {
  std::vector<PoolReport> reports;
  for (const PoolRef& pool : pools_.All()) reports.push_back(pool->Report());
  return reports;
}

DrainReport FabricNode::DrainProgress() const {
  DrainReport sum;
  sum.done = true;
  for (const PoolRef& pool : pools_.All()) {
    const DrainReport one = pool->drainer().Progress();
    sum.active = sum.active || one.active;
    sum.done = sum.done && one.done;
    sum.moved_blocks += one.moved_blocks;
    sum.moved_bytes += one.moved_bytes;
    sum.dropped_blocks += one.dropped_blocks;
    sum.remaining_blocks += one.remaining_blocks;
  }
  sum.active = sum.active || desk_.draining();
  sum.done = sum.done && sum.active;
  return sum;
}

}  // namespace kvfabric
