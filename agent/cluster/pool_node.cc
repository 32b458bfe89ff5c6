#include "agent/cluster/pool_node.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace kvfabric {

namespace {

constexpr std::chrono::seconds kSweepPeriod{1};

}  // namespace

CacheEngine::Options PoolNode::EngineOptions(const PoolSpecForAgent& spec) {
  CacheEngine::Options options;
  options.pool_uid = spec.uid;
  options.pool_name = spec.name;
  options.capacity_bytes = spec.dram_capacity_bytes;
  options.high_watermark_percent = spec.high_watermark_percent;
  options.low_watermark_percent = spec.low_watermark_percent;
  options.eviction_policy = spec.eviction_policy;
  options.quotas = spec.tenants;
  return options;
}

PoolNode::PoolNode(PoolSpecForAgent spec, const NodeContext& context)
    : context_(context),
      uid_(spec.uid),
      name_(spec.name),
      spec_(std::make_shared<const PoolSpecForAgent>(std::move(spec))),
      metrics_(*context.metrics, name_),
      directory_({.max_bytes = context.directory_bytes}),
      feed_(directory_, {.announced = &metrics_.announced_keys,
                         .resyncs = &metrics_.resyncs,
                         .repeats = &metrics_.announce_repeats}),
      announcer_({.pool_uid = uid_, .self = context.self.node, .boot_epoch = context.boot_epoch},
                 {.clock = context.clock,
                  .peers = context.peers,
                  .own_feed = &feed_,
                  .background = context.background,
                  .gate = &gate_,
                  .messages = &metrics_.announces,
                  .snapshots = &metrics_.snapshots,
                  .on_stale_epoch =
                      [this](NodeIndex peer) {
                        metrics_.stale_epochs.Add();
                        const auto soon =
                            Deadline::After(*context_.clock, std::chrono::milliseconds(1000));
                        context_.refresh_map(uid_, peer, soon, [] {});
                      }}),
      locator_(uid_, {.clock = context.clock,
                      .directory = &directory_,
                      .routing = &routing_,
                      .peers = context.peers,
                      .names = context.names,
                      .gate = &gate_,
                      .asked = &metrics_.locates,
                      .handovers = &metrics_.handovers,
                      .refresh_map =
                          [this](NodeIndex peer, Deadline deadline, std::function<void()> done) {
                            metrics_.stale_epochs.Add();
                            context_.refresh_map(uid_, peer, deadline, std::move(done));
                          }}),
      replicator_(
          uid_, {.context = &context_, .routing = &routing_, .gate = &gate_, .metrics = &metrics_}),
      repair_({.pool = this, .replicator = &replicator_, .metrics = &metrics_, .gate = &gate_}),
      spiller_(uid_,
               {.context = &context_, .routing = &routing_, .gate = &gate_, .metrics = &metrics_}),
      drainer_(uid_,
               {.context = &context_, .routing = &routing_, .gate = &gate_, .metrics = &metrics_}),
      sweep_at_(context.clock->Now()) {}

Result<std::shared_ptr<PoolNode>> PoolNode::Create(PoolSpecForAgent spec,
                                                   const NodeContext& context) {
  if (!IsValidSlotCount(spec.slots)) {
    return InvalidArgument("pool " + spec.name + ": slots: " + std::to_string(spec.slots) +
                           " (16384, 32768, 65536 or 131072)");
  }
  if (spec.replicas < 1 || spec.replicas > kMaxReplicas) {
    return InvalidArgument("pool " + spec.name + ": replicas: " + std::to_string(spec.replicas) +
                           " (1..3)");
  }
  std::shared_ptr<PoolNode> pool(new PoolNode(std::move(spec), context));
  KVF_ASSIGN_OR_RETURN(pool->engine_, context.make_engine(EngineOptions(*pool->spec())));
  pool->announcer_.SetEngine(pool->engine_.get());
  pool->replicator_.SetEngine(pool->engine_.get());
  pool->drainer_.SetEngine(pool->engine_.get());
  pool->SetLimits(*pool->spec());
  pool->engine_->SetObserver(&pool->announcer_);
  pool->engine_->SetSpillTarget(&pool->spiller_);
  context.leases->SetPoolBytes(pool->uid_, pool->spec()->dram_capacity_bytes);
  return pool;
}

PoolNode::~PoolNode() = default;

void PoolNode::SetLimits(const PoolSpecForAgent& spec) {
  replicator_.SetLimits(spec.dram_capacity_bytes, spec.replicas);
  repair_.SetLimits(spec.bandwidth_limit_bytes_per_s, spec.replicas, spec.paused);
  spiller_.SetCapacity(spec.dram_capacity_bytes);
  drainer_.SetRate(spec.bandwidth_limit_bytes_per_s);
}

SharedPoolSpec PoolNode::spec() const {
  MutexLock lock(spec_mu_);
  return spec_;
}

Status PoolNode::Reconfigure(PoolSpecForAgent spec) {
  const SharedPoolSpec now = this->spec();
  if (spec.slots != now->slots || spec.eviction_policy != now->eviction_policy ||
      spec.name != now->name) {
    return InvalidArgument("pool " + name_ +
                           ": reconfigure: name, slots and eviction policy are fixed; make a new "
                           "pool");
  }
  KVF_RETURN_IF_ERROR(engine_->Reconfigure(EngineOptions(spec)));
  context_.leases->SetPoolBytes(uid_, spec.dram_capacity_bytes);
  SetLimits(spec);
  MutexLock lock(spec_mu_);
  spec_ = std::make_shared<const PoolSpecForAgent>(std::move(spec));
  return Status::Ok();
}

// Slots that come back within the hand-over still have entries from when they were ours last; what
// happened meanwhile was told to others. They go before any announcement of this epoch is taken.
void PoolNode::DropStaleEntries(const PoolRouting& before, const PoolRouting& now) {
  {
    MutexLock lock(sweep_mu_);
    if (!std::exchange(sweep_foreign_, true)) return;
  }
  std::vector<bool> keep(now.map().slot_count, true);
  for (const SlotIndex slot : now.GainedSlots(now.self(), &before)) keep[slot] = false;
  feed_.Sweep(keep);
}

void PoolNode::SetRouting(SharedRouting routing) {
  const SharedRouting before = routing_.Get();
  if (before != nullptr) DropStaleEntries(*before, *routing);
  routing_.Set(routing);
  metrics_.map_epoch.Set(static_cast<double>(routing->epoch()));
  LogInfo("shard map applied", {{"pool", name_},
                                {"term", routing->map().term},
                                {"epoch", routing->epoch()},
                                {"members", routing->map().members.size()}});
  if (before != nullptr) {
    for (const NodeIndex lost : routing->LostSince(*before)) {
      repair_.OnLost(*routing, lost);
      feed_.Forget(lost);
    }
  }
  announcer_.SetRouting(std::move(routing));
}

void PoolNode::OnPeerChanged(NodeIndex /*peer*/, bool up) {
  if (!up) return;
  announcer_.Poke();
  repair_.OnPeerUp();
}

void PoolNode::SweepIfDue() {
  const Clock::TimePoint now = context_.clock->Now();
  bool foreign = false;
  const SharedRouting routing = routing_.Get();
  {
    MutexLock lock(sweep_mu_);
    if (now < sweep_at_) return;
    sweep_at_ = now + kSweepPeriod;
    // Entries of slots that went are kept while their new owner may still ask for them.
    if (routing != nullptr && now >= routing->adopted_at() + PoolRouting::kHandover) {
      foreign = std::exchange(sweep_foreign_, false);
    }
  }
  std::shared_ptr<Gate::Pass> pass = gate_.EnterShared();
  if (!pass) return;
  // Refused: the retired entries wait for the next period.
  static_cast<void>(context_.background->Submit([this, pass, foreign, routing] {
    feed_.Sweep(foreign ? routing->OwnedBits() : std::vector<bool>());
    const Directory::Counts counts = directory_.counts();
    metrics_.directory_entries.Set(static_cast<double>(counts.entries));
    metrics_.directory_bytes.Set(static_cast<double>(counts.bytes));
    metrics_.under_replicated.Set(static_cast<double>(replicator_.waiting() + repair_.waiting()));
  }));
}

void PoolNode::Tick() {
  announcer_.Poke();
  SweepIfDue();
  std::shared_ptr<Gate::Pass> pass = gate_.EnterShared();
  // One at a time: a slow executor must not fill with ticks.
  if (!pass || ticking_.exchange(true)) return;
  const bool taken = context_.background->Submit([this, pass] {
    spiller_.Tick();
    replicator_.RetryOwed();
    repair_.Pump();
    drainer_.Pump();
    ticking_.store(false);
  });
  if (!taken) ticking_.store(false);  // 50 ms later
}

void PoolNode::Close() {
  context_.leases->SetPoolBytes(uid_, 0);
  engine_->Clear();
}

PoolColdness PoolNode::Coldness() const {
  PoolColdness coldness;
  coldness.pool_uid = uid_;
  if (const auto age = engine_->ColdestAge(); age) {
    coldness.coldest_age = std::chrono::duration_cast<std::chrono::microseconds>(*age);
  }
  coldness.free_bytes = FreeBytes();
  return coldness;
}

std::uint64_t PoolNode::FreeBytes() const {
  const EngineStats stats = engine_->Stats();
  const std::uint64_t high = stats.capacity_bytes / 100 * spec()->high_watermark_percent;
  return high > stats.used_bytes ? high - stats.used_bytes : 0;
}

PoolReport PoolNode::Report() const {
  const SharedPoolSpec spec = this->spec();
  const EngineStats stats = engine_->Stats();
  PoolReport report;
  report.uid = uid_;
  report.name = name_;
  report.applied_generation = spec->generation;
  if (const SharedRouting routing = routing_.Get(); routing != nullptr) {
    report.applied_term = routing->map().term;
    report.applied_epoch = routing->epoch();
  }
  report.capacity_bytes = stats.capacity_bytes;
  report.used_bytes = stats.used_bytes;
  report.blocks = stats.blocks;
  report.hit_blocks =
      static_cast<std::uint64_t>(metrics_.hits_local.Value() + metrics_.hits_peer.Value());
  report.lookup_blocks = static_cast<std::uint64_t>(metrics_.lookup_blocks.Value());
  report.under_replicated = replicator_.waiting() + repair_.waiting();
  return report;
}

}  // namespace kvfabric
