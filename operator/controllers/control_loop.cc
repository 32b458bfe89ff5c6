#include "operator/controllers/control_loop.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/log.h"

namespace kvfabric {

using kube::Kind;
using kube::ObjectName;

struct ControlLoop::Probe {
  explicit Probe(MetricsRegistry& registry)
      : reconciled(registry.GetCounter("kvfabric_operator_reconcile_total",
                                       "Looks at a pool, by result", {{"result", "success"}})),
        failed(registry.GetCounter("kvfabric_operator_reconcile_total",
                                   "Looks at a pool, by result", {{"result", "error"}})),
        map_writes(registry.GetGauge("kvfabric_operator_map_writes",
                                     "Shard maps written since the start")),
        status_writes(registry.GetGauge("kvfabric_operator_status_writes",
                                        "Pool statuses written since the start")),
        queue_depth(registry.GetGauge("kvfabric_operator_queue_depth", "Pools that wait")),
        mass_failure(registry.GetGauge("kvfabric_operator_held_members",
                                       "Members that are kept from changing hands, by brake",
                                       {{"brake", "mass_failure"}})),
        flapping(registry.GetGauge("kvfabric_operator_held_members",
                                   "Members that are kept from changing hands, by brake",
                                   {{"brake", "flapping"}})),
        proposals(registry.GetGauge("kvfabric_operator_waiting_proposals",
                                    "Pools whose moves wait for an approval")),
        events_written(registry.GetGauge("kvfabric_operator_events",
                                         "Events about pools since the start, by result",
                                         {{"result", "written"}})),
        events_failed(registry.GetGauge("kvfabric_operator_events",
                                        "Events about pools since the start, by result",
                                        {{"result", "failed"}})),
        leading(registry.GetGauge("kvfabric_operator_leading", "1 while this process leads")),
        term(registry.GetGauge("kvfabric_operator_term", "Term of the leadership")),
        connected(registry.GetGauge("kvfabric_operator_agents", "Agents, by connection",
                                    {{"state", "connected"}})),
        away(registry.GetGauge("kvfabric_operator_agents", "Agents, by connection",
                               {{"state", "away"}})) {}

  Counter& reconciled;
  Counter& failed;
  Gauge& map_writes;
  Gauge& status_writes;
  Gauge& queue_depth;
  Gauge& mass_failure;
  Gauge& flapping;
  Gauge& proposals;
  Gauge& events_written;
  Gauge& events_failed;
  Gauge& leading;
  Gauge& term;
  Gauge& connected;
  Gauge& away;
};

namespace {

// Keys of the queue are the names of pools.
std::string KeyOf(const ObjectName& name) { return name.ns + "/" + name.name; }
ObjectName NameOf(const std::string& key) {
  const std::size_t slash = key.find('/');
  return {key.substr(0, slash), key.substr(slash + 1)};
}

// Priorities of the queue: node loss before spec changes before the tick.
constexpr int kNodePriority = 2;
constexpr int kSpecPriority = 1;

}  // namespace

ControlLoop::ControlLoop(const Environment& environment, Options options)
    : environment_(environment), options_(std::move(options)) {
  const Clock& clock = *environment_.clock;
  kube::KubeApi& api = *environment_.api;
  probe_ = std::make_unique<Probe>(*environment_.metrics);
  mailbox_ = std::make_unique<AgentMailbox>(clock, [this] { Wake(); });
  registry_ =
      std::make_unique<AgentRegistry>(*environment_.dialer, *mailbox_, clock, options_.registry);
  kube::WorkQueue::Options queue;
  // A node may be lost meanwhile: no pool waits longer than this after a failure.
  queue.longest_retry = std::chrono::seconds(30);
  queue_ = std::make_unique<kube::WorkQueue>(clock, std::move(queue));
  const auto reflect = [this](Kind kind, const std::string& ns) {
    kube::Reflector::Options reflector;
    reflector.kind = kind;
    reflector.scope.ns = ns;
    reflector.on_ready = [this] { Wake(); };
    return reflector;
  };
  pools_ = std::make_unique<kube::Informer<Pool>>(api, clock, reflect(Kind::kPool, ""), DecodePool);
  maps_ = std::make_unique<kube::Informer<ShardMapObject>>(api, clock, reflect(Kind::kShardMap, ""),
                                                           DecodeShardMap);
  nodes_ =
      std::make_unique<kube::Informer<NodeFacts>>(api, clock, reflect(Kind::kNode, ""), DecodeNode);
  pods_ = std::make_unique<kube::Informer<AgentPodFacts>>(
      api, clock, reflect(Kind::kPod, options_.agent_namespace), DecodeAgentPod);
  pools_->AddHandler([this](const ObjectName& name, const auto& /*before*/, const auto& /*after*/) {
    queue_->Add(KeyOf(name), kSpecPriority);
  });
  maps_->AddHandler([this](const ObjectName& name, const auto& /*before*/, const auto& /*after*/) {
    queue_->Add(KeyOf(name), kSpecPriority);
  });
  nodes_->AddHandler([this](const ObjectName& /*name*/, const auto& before, const auto& after) {
    // Kubelets touch their Nodes all the time: only what is read here counts.
    if (before != nullptr && after != nullptr && *before == *after) return;
    for (const auto& [pool, item] : *pools_->snapshot()) queue_->Add(KeyOf(pool), kNodePriority);
  });
  pods_->AddHandler([this](const ObjectName& /*name*/, const auto& before, const auto& after) {
    if (before == nullptr || after == nullptr || !(*before == *after)) pods_changed_ = true;
  });
  fenced_ = std::make_unique<kube::FencedKube>(api, *environment_.elector);
  PoolReconciler::Options reconciler = options_.reconciler;
  reconciler.events.instance = options_.registry.operator_id;
  reconciler_ = std::make_unique<PoolReconciler>(
      *fenced_, PoolReconciler::Caches{pools_.get(), maps_.get(), nodes_.get()}, *registry_, clock,
      std::move(reconciler));
}

ControlLoop::~ControlLoop() { Stop(); }

void ControlLoop::Stop() {
  if (registry_ != nullptr) registry_->StopTerm();
  term_.reset();
}

void ControlLoop::EnqueueAll(Clock::Duration delay) {
  for (const auto& [name, pool] : *pools_->snapshot()) queue_->AddAfter(KeyOf(name), delay);
}

void ControlLoop::SetIdentityHold() {
  std::chrono::milliseconds hold{0};
  for (const auto& [name, pool] : *pools_->snapshot()) {
    hold = std::max(hold, pool->spec.rebalance.node_loss_grace);
  }
  if (hold.count() > 0) registry_->set_identity_hold(hold);
}

void ControlLoop::FollowLeadership() {
  const bool leading = environment_.elector->leading();
  const std::uint64_t term = environment_.elector->term();
  const std::string lease_uid = environment_.elector->lease_uid();
  probe_->leading.Set(leading ? 1 : 0);
  probe_->term.Set(static_cast<double>(term));
  if (!leading) {
    if (term_.has_value()) registry_->StopTerm();
    term_.reset();
    return;
  }
  if (term_ == term && lease_uid_ == lease_uid) return;
  term_ = term;
  lease_uid_ = lease_uid;
  registry_->StartTerm(term, lease_uid);
  reconciler_->StartTerm(term);
  EnqueueAll(Clock::Duration::zero());
}

void ControlLoop::CatchUpTerm() {
  std::set<std::string> uids;
  for (const auto& [name, pool] : *pools_->snapshot()) uids.insert(pool->meta.uid);
  const std::uint64_t seen =
      std::max(registry_->HighestAppliedTerm(uids), registry_->highest_refusing_term());
  if (seen <= std::max(*term_, raised_)) return;
  raised_ = seen;
  LogWarn("agents know a higher term than the Lease: was it deleted, or the store restored?",
          {{"term", *term_}, {"seen", seen}});
  environment_.elector->RaiseTerm(seen);
}

void ControlLoop::ReconcileDue() {
  while (const std::optional<std::string> key = queue_->TryGet()) {
    // Asked again each time: a reconcile may have taken long.
    if (!environment_.elector->leading()) {
      queue_->Done(*key);
      return;
    }
    const ObjectName name = NameOf(*key);
    const Status status = reconciler_->Reconcile(name);
    (status.ok() ? probe_->reconciled : probe_->failed).Add();
    queue_->Done(*key);
    if (status.ok()) {
      queue_->Forget(*key);
      if (pools_->Find(name) != nullptr) queue_->AddAfter(*key, options_.tick);
    } else {
      const auto wait = queue_->Retry(*key);
      LogWarn("pool not reconciled",
              {{"pool", *key}, {"reason", status.message()}, {"wait_ms", wait.count()}});
    }
  }
}

void ControlLoop::TendCertificates() {
  Certificates* const certificates = environment_.certificates;
  if (certificates == nullptr) return;
  for (const auto& [node, request] : registry_->TakeCertificateRequests()) {
    // For the node whose pod was dialled, never for a name in the request.
    const auto made = certificates->Sign(request, node, registry_->Find(node)->target.host);
    if (made.ok()) {
      registry_->SendCertificate(node, *made, certificates->trusted());
    } else {
      LogWarn("certificate refused", {{"node", node}, {"reason", made.status().message()}});
    }
  }
  const Status tended =
      certificates->Step(registry_->AllTrust(certificates->trusted_fingerprint()));
  if (!tended.ok()) LogWarn("certificates not renewed", {{"reason", tended.message()}});
  registry_->WantTrust(certificates->trusted_fingerprint(), certificates->trusted());
}

void ControlLoop::Step() {
  nodes_->Step();
  pods_->Step();
  maps_->Step();
  pools_->Step();
  const bool synced = nodes_->synced() && pods_->synced() && maps_->synced() && pools_->synced();
  synced_.store(synced, std::memory_order_release);
  if (synced) {
    FollowLeadership();
    if (std::exchange(pods_changed_, false)) registry_->SetPods(*pods_->snapshot());
    if (term_.has_value()) {
      SetIdentityHold();
      if (registry_->Step()) {
        EnqueueAll(options_.gather);
        CatchUpTerm();
      }
      TendCertificates();
      ReconcileDue();
      if (environment_.elector->leading()) reconciler_->Push();
    }
  }
  probe_->map_writes.Set(static_cast<double>(reconciler_->map_writes()));
  probe_->status_writes.Set(static_cast<double>(reconciler_->status_writes()));
  probe_->queue_depth.Set(static_cast<double>(queue_->waiting()));
  SetHeld();
  const auto connected = std::count_if(registry_->agents().begin(), registry_->agents().end(),
                                       [](const auto& entry) { return entry.second.connected; });
  probe_->connected.Set(static_cast<double>(connected));
  probe_->away.Set(static_cast<double>(registry_->agents().size()) -
                   static_cast<double>(connected));
  last_step_.store(environment_.clock->Now().time_since_epoch().count(), std::memory_order_release);
}

void ControlLoop::SetHeld() {
  // Who does not lead holds nobody.
  const PoolReconciler::Held held =
      term_.has_value() ? reconciler_->held() : PoolReconciler::Held{};
  probe_->mass_failure.Set(static_cast<double>(held.mass_failure));
  probe_->flapping.Set(static_cast<double>(held.flapping));
  probe_->proposals.Set(static_cast<double>(held.proposals));
  probe_->events_written.Set(static_cast<double>(reconciler_->events().written()));
  probe_->events_failed.Set(static_cast<double>(reconciler_->events().failed()));
}

Clock::TimePoint ControlLoop::NextDue() const {
  Clock::TimePoint due = environment_.clock->Now() + options_.tick;
  const auto consider = [&due](const std::optional<Clock::TimePoint>& next) {
    if (next.has_value()) due = std::min(due, *next);
  };
  consider(pools_->NextDue());
  consider(maps_->NextDue());
  consider(nodes_->NextDue());
  consider(pods_->NextDue());
  // A Step takes these only as leader; waiting for them otherwise would end at once, for ever.
  if (term_.has_value() && synced_.load(std::memory_order_acquire)) {
    consider(queue_->NextDue());
    consider(registry_->NextDue());
  }
  return due;
}

void ControlLoop::Wake() {
  MutexLock lock(mu_);
  woken_ = true;
  wake_.NotifyOne();
}

void ControlLoop::Run(const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] { Wake(); });
  while (!stop.stop_requested()) {
    Step();
    const Clock::TimePoint due = NextDue();
    MutexLock lock(mu_);
    while (!woken_ && environment_.clock->Now() < due) {
      if (!wake_.WaitUntil(mu_, due)) break;
    }
    woken_ = false;
  }
}

}  // namespace kvfabric
