#include "operator/controllers/pool_reconciler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/log.h"
#include "operator/controllers/pool_config.h"
#include "operator/controllers/pool_events.h"
#include "operator/controllers/pool_status_builder.h"
#include "operator/kube/api_error.h"
#include "operator/kube/timestamp.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {
namespace {

using kube::Kind;

std::string TextOf(const std::vector<kube::Cause>& causes) {
  std::string out;
  for (const kube::Cause& cause : causes) {
    out += (out.empty() ? "" : "; ") + cause.field + ": " + cause.message;
  }
  return out;
}

}  // namespace

PoolReconciler::PoolReconciler(kube::KubeClient& api, const Caches& caches, AgentRegistry& registry,
                               const Clock& clock, Options options)
    : api_(api),
      caches_(caches),
      registry_(registry),
      clock_(clock),
      options_(options),
      events_(api, clock, options.events) {}

void PoolReconciler::StartTerm(std::uint64_t term) {
  term_ = term;
  leading_since_ = clock_.Now();
  pools_.clear();
}

World PoolReconciler::Look() const {
  World world;
  world.nodes = caches_.nodes->snapshot().get();
  world.registry = &registry_;
  world.now = clock_.Now();
  world.now_unix_us = clock_.UnixMicros();
  world.leading_since = leading_since_;
  world.node_is_gone = [this](const std::string& node) {
    return kube::IsNotFound(api_.Get(Kind::kNode, {"", node}).status());
  };
  return world;
}

PoolReconciler::Judgement PoolReconciler::Judge(const Pool& pool) {
  if (!pool.faults.empty()) return {"Invalid", TextOf(pool.faults)};
  const std::vector<kube::Cause> missing = NotBuilt(pool.spec);
  if (!missing.empty()) return {"NotBuilt", TextOf(missing)};
  const std::string too_much = capacity_.Judge(pool, caches_.pools->snapshot(),
                                               caches_.nodes->snapshot(), registry_, clock_.Now());
  if (!too_much.empty()) return {"Oversubscribed", too_much};
  return {};
}

void PoolReconciler::TakeMap(const kube::ObjectName& name, State* state) const {
  const auto cached = caches_.maps->Find(name);
  const std::uint64_t ours = state->map.has_value() ? state->map->meta.resource_version : 0;
  if (cached == nullptr) {
    // Our own write may not have come round yet.
    if (ours <= caches_.maps->resource_version()) state->map.reset();
  } else if (cached->meta.resource_version > ours) {
    state->map = *cached;
  }
  // The map of an earlier pool of this name is not ours.
  if (state->map.has_value() && state->map->map.pool_uid != state->pool->meta.uid) {
    state->map.reset();
  }
  if (!state->map.has_value()) return;
  for (const Member& member : state->map->map.members) {
    registry_.Remember(member.node_name, member.agent_uid,
                       {member.node_name, member.address, member.grpc_port}, member.bulk_port);
  }
}

Status PoolReconciler::Forget(const kube::ObjectName& name) {
  const auto it = pools_.find(name);
  if (it == pools_.end()) return Status::Ok();
  // Its blocks go with it: look at the API itself before that.
  const Result<kube::ObjectPtr> live = api_.Get(Kind::kPool, name);
  if (live.ok() && (*live)->meta.uid == it->second.pool->meta.uid) {
    return Unavailable("pool " + name.ToString() + ": gone from the cache but not from the API");
  }
  if (!live.ok() && !kube::IsNotFound(live.status())) return live.status();
  LogInfo("pool is gone", {{"pool", name.ToString()}});
  pools_.erase(it);
  return Status::Ok();
}

Status PoolReconciler::Reconcile(const kube::ObjectName& name) {
  const auto pool = caches_.pools->Find(name);
  if (pool == nullptr) return Forget(name);
  auto it = pools_.find(name);
  if (it != pools_.end() && it->second.pool->meta.uid != pool->meta.uid) {
    pools_.erase(it);
    it = pools_.end();
  }
  const bool fresh = it == pools_.end();
  if (fresh) it = pools_.emplace(name, State(options_)).first;
  State& state = it->second;
  if (state.written_version > caches_.pools->resource_version()) return Status::Ok();  // next round
  state.pool = pool;
  TakeMap(name, &state);
  const World world = Look();
  if (fresh) state.tracker.Restore(pool->status.unstable_nodes, world);
  const Judgement judgement = Judge(*pool);
  // A pool that ran before its config went wrong goes on with what can be run of it.
  if (judgement.reason.empty() || state.map.has_value()) {
    if (auto config = ConfigFor(*pool)) state.config = std::move(config);
  } else {
    state.config.reset();
  }
  state.seen_in_term = true;
  state.members.clear();
  if (pool->faults.empty()) {
    state.members = state.tracker.Observe(*pool, state.map.has_value() ? &state.map->map : nullptr,
                                          world, HoldJoins(*pool));
    if (judgement.reason.empty() || state.map.has_value()) {
      KVF_RETURN_IF_ERROR(FollowMap(&state, world));
    }
    if (judgement.reason.empty()) KeepConnection(&state, world);
  }
  return WriteStatus(&state, world, judgement);
}

std::uint64_t PoolReconciler::BytesPerSlot(const Pool& pool) const {
  std::uint64_t used = 0;
  for (const auto& [name, agent] : registry_.agents()) {
    if (!agent.report.has_value()) continue;
    if (const AgentPoolReport* report = agent.report->FindPool(pool.meta.uid)) {
      used += report->used_bytes;
    }
  }
  return used / pool.spec.sharding.slots;
}

Status PoolReconciler::FollowMap(State* state, const World& world) {
  const Pool& pool = *state->pool;
  const ShardMap* stored = state->map.has_value() ? &state->map->map : nullptr;
  if (stored == nullptr && !state->tracker.MayBegin(pool, state->members, world)) {
    return Status::Ok();
  }
  MapPlanner::Input input;
  input.pool = &pool;
  input.stored = stored;
  input.members = &state->members;
  Proposer::Verdict verdict;
  KVF_RETURN_IF_ERROR(MayBalance(state, &verdict, &input.may_balance));
  input.work_left = verdict.may_move;
  input.highest_epoch = HighestEpoch(pool.meta.uid, registry_);
  input.term = term_;
  input.bytes_per_slot = BytesPerSlot(pool);
  input.now = world.now;
  KVF_ASSIGN_OR_RETURN(std::optional<MapChange> change, state->planner.Next(input));
  if (!change.has_value()) {
    RefreshBytes(state);
    // Not beside a new map: what is proposed is for the map that stands.
    RebalanceStatus now = state->rebalance.value_or(pool.status.rebalance);
    now.proposal = std::move(verdict.proposal);
    now.last_approved = std::move(verdict.last_approved);
    state->rebalance = std::move(now);
    return Status::Ok();
  }
  return WriteMap(state, std::move(*change));
}

bool PoolReconciler::HoldJoins(const Pool& pool) {
  const std::string& mode = pool.spec.rebalance.mode;
  return mode == "Paused" || (mode == "Propose" && !pool.status.rebalance.proposal.approved);
}

Status PoolReconciler::MayBalance(State* state, Proposer::Verdict* verdict, bool* may) const {
  const Pool& pool = *state->pool;
  const std::string& mode = pool.spec.rebalance.mode;
  const ShardMap* stored = state->map.has_value() ? &state->map->map : nullptr;
  verdict->last_approved = pool.status.rebalance.last_approved;
  bool by_mode = mode == "Automatic";
  if (mode == "Propose" && stored != nullptr && !pool.spec.paused) {
    Proposer::Input input;
    input.pool = &pool;
    input.stored = stored;
    input.members = &state->members;
    input.bytes_per_slot = BytesPerSlot(pool);
    input.now_unix_us = clock_.UnixMicros();
    KVF_ASSIGN_OR_RETURN(*verdict, state->proposer.Look(input));
    by_mode = verdict->may_move;
  }
  *may = by_mode && state->tracker.mass_failure().empty() &&
         (stored == nullptr || HasConverged(state->members, *stored, term_, registry_));
  return Status::Ok();
}

Status PoolReconciler::WriteMap(State* state, MapChange change) {
  const bool first = !state->map.has_value();
  const std::uint64_t version = first ? 0 : state->map->meta.resource_version;
  KVF_ASSIGN_OR_RETURN(const std::string json,
                       EncodeShardMap(state->pool->meta, change.map, version));
  const Result<kube::ObjectPtr> written =
      first ? api_.Create(Kind::kShardMap, json) : api_.Update(Kind::kShardMap, json);
  if (!written.ok()) {
    return written.status().WithContext("shard map of " + state->pool->meta.name.ToString());
  }
  ++map_writes_;
  NoteChange(change, first, state);
  state->map = ShardMapObject{(*written)->meta, std::move(change.map)};
  RefreshBytes(state);
  return Status::Ok();
}

void PoolReconciler::NoteChange(const MapChange& change, bool first, State* state) const {
  LogInfo("new shard map", {{"pool", state->pool->meta.name.ToString()},
                            {"epoch", change.map.epoch},
                            {"term", change.map.term},
                            {"reason", change.reason},
                            {"moved", change.moved},
                            {"remaining", change.remaining}});
  state->migrating = change.moved;
  const std::string now = kube::FormatTime(clock_.UnixMicros());
  RebalanceStatus rebalance = state->rebalance.value_or(state->pool->status.rebalance);
  if (!first) {
    // One story from the first move until all is settled.
    if (rebalance.slots_remaining == 0 && state->pool->status.rebalance.state != "Moving") {
      rebalance = RebalanceStatus{};
      rebalance.proposal = state->pool->status.rebalance.proposal;
      rebalance.last_approved = state->pool->status.rebalance.last_approved;
      rebalance.started_at = now;
    }
    rebalance.reason = change.reason;
    rebalance.slots_moved += change.moved;
    rebalance.bytes_moved += change.moved_bytes;
  }
  rebalance.slots_remaining = change.remaining;
  state->rebalance = rebalance;
  if (!change.newly_lost.empty()) {
    state->loss = NodeLossStatus{change.newly_lost.front(), now, change.lost_slots, ""};
    LogWarn("nodes lost", {{"pool", state->pool->meta.name.ToString()},
                           {"first", change.newly_lost.front()},
                           {"count", change.newly_lost.size()},
                           {"slots", change.lost_slots}});
  }
}

// The stored map under this leader's term: what a new leader sends again.
void PoolReconciler::RefreshBytes(State* state) const {
  if (!state->map.has_value()) {
    state->bytes.reset();
    return;
  }
  const std::pair<std::uint64_t, std::uint64_t> wanted{term_, state->map->map.epoch};
  if (state->bytes != nullptr && state->bytes_of == wanted) return;
  ShardMap map = state->map->map;
  map.term = term_;
  const Result<std::vector<std::byte>> bytes = SerializeShardMap(map);
  if (!bytes.ok()) {
    LogError("shard map cannot be sent", {{"reason", bytes.status().message()}});
    return;
  }
  state->bytes = std::make_shared<const std::string>(AsText(*bytes));
  state->bytes_of = wanted;
}

void PoolReconciler::KeepConnection(State* state, const World& world) {
  const ShardMap* map = state->map.has_value() ? &state->map->map : nullptr;
  const Status kept = state->connection.Keep(*state->pool, map, api_, world.now);
  if (kept.ok()) return;
  LogWarn("connection ConfigMap not written",
          {{"pool", state->pool->meta.name.ToString()}, {"reason", kept.message()}});
}

void PoolReconciler::TellEvents(const Pool& pool, const PoolStatus& written) {
  const kube::EventSubject subject{Kind::kPool, pool.meta.name, pool.meta.uid};
  for (const kube::EventText& text : EventsOf(pool.status, written)) events_.Record(subject, text);
}

PoolReconciler::Held PoolReconciler::held() const {
  Held out;
  for (const auto& [name, state] : pools_) {
    out.mass_failure += state.tracker.mass_failure().size();
    out.flapping += static_cast<std::size_t>(
        std::count_if(state.members.begin(), state.members.end(),
                      [](const TrackedMember& member) { return member.held_back; }));
    const ProposalStatus& proposal = state.pool->status.rebalance.proposal;
    out.proposals += !proposal.id.empty() && !proposal.approved ? 1U : 0U;
  }
  return out;
}

bool PoolReconciler::StatusIsSettled(const State& state, const World& world) const {
  if (!state.map.has_value()) return true;
  if (world.now - world.leading_since >= options_.hold_status) return true;
  const auto& members = state.map->map.members;
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const NodeAgent* agent = registry_.Find(member.node_name);
    const AgentPoolReport* report = agent != nullptr && agent->heard && agent->report.has_value()
                                        ? agent->report->FindPool(state.pool->meta.uid)
                                        : nullptr;
    return report != nullptr && report->applied_term == term_;
  });
}

Status PoolReconciler::WriteStatus(State* state, const World& world, const Judgement& judgement) {
  const Pool& pool = *state->pool;
  const bool new_generation = pool.status.observed_generation != pool.meta.generation;
  if (!new_generation && !StatusIsSettled(*state, world)) return Status::Ok();
  PoolFacts facts;
  facts.pool = &pool;
  facts.map = state->map.has_value() ? &state->map->map : nullptr;
  facts.members = &state->members;
  facts.registry = &registry_;
  facts.config_reason = judgement.reason;
  facts.config_message = judgement.message;
  facts.term = term_;
  facts.mass_failure = state->tracker.mass_failure();
  facts.unstable_nodes = state->tracker.UnstableNodes();
  facts.desired = MemberTracker::CountDesired(pool.spec, world);
  facts.migrating = state->migrating;
  facts.rebalance = state->rebalance.value_or(pool.status.rebalance);
  facts.rebalance.slots_remaining = state->planner.remaining();
  facts.loss = state->loss.value_or(pool.status.last_node_loss);
  facts.now_unix_us = clock_.UnixMicros();
  const PoolStatus wanted = BuildPoolStatus(facts);
  state->loss = wanted.last_node_loss;
  if (wanted == pool.status) return Status::Ok();
  const bool due = !state->status_written.has_value() ||
                   world.now - *state->status_written >= options_.status_period;
  if (!due && !MustWriteNow(pool.status, wanted)) return Status::Ok();
  KVF_ASSIGN_OR_RETURN(const std::string json, WithStatus(pool.meta, wanted));
  const Result<kube::ObjectPtr> written = api_.UpdateStatus(Kind::kPool, json);
  if (!written.ok()) return written.status();
  ++status_writes_;
  TellEvents(pool, wanted);
  state->written_version = (*written)->meta.resource_version;
  state->status_written = world.now;
  return Status::Ok();
}

bool PoolReconciler::BelongsTo(const State& state, const std::string& node) const {
  const bool member = std::any_of(
      state.members.begin(), state.members.end(),
      [&](const TrackedMember& tracked) { return tracked.plan.member.node_name == node; });
  if (member) return true;
  const auto facts = caches_.nodes->Find({"", node});
  return facts != nullptr && NodeFits(*facts, state.pool->spec.placement);
}

void PoolReconciler::Push() {
  for (const auto& [name, pool] : *caches_.pools->snapshot()) {
    const auto it = pools_.find(name);
    if (it == pools_.end() || !it->second.seen_in_term) return;
    // A pool that runs and can no longer be read would be missing from every list.
    if (it->second.map.has_value() && !it->second.config.has_value()) return;
  }
  std::set<std::string> members;
  for (const auto& [name, state] : pools_) {
    if (!state.map.has_value()) continue;
    for (const Member& member : state.map->map.members) members.insert(member.node_name);
  }
  registry_.Retain(members);
  for (const auto& [node, agent] : registry_.agents()) {
    if (!agent.connected) continue;
    std::vector<AgentPoolConfig> configs;
    bool draining = false;
    for (const auto& [name, state] : pools_) {
      if (!state.config.has_value() || !BelongsTo(state, node)) continue;
      configs.push_back(*state.config);
      const std::string& member_node = node;
      draining =
          draining || std::any_of(state.members.begin(), state.members.end(),
                                  [&](const TrackedMember& tracked) {
                                    return tracked.plan.member.node_name == member_node &&
                                           tracked.plan.member.state == MemberState::kDraining;
                                  });
    }
    registry_.WantPools(node, std::move(configs));
    for (const auto& [name, state] : pools_) {
      if (state.config.has_value() && state.bytes != nullptr && BelongsTo(state, node)) {
        registry_.WantMap(node, state.pool->meta.uid, state.bytes_of.second, state.bytes);
      }
    }
    registry_.WantDrain(node, draining);
  }
}

std::optional<ShardMap> PoolReconciler::map(const kube::ObjectName& name) const {
  const auto it = pools_.find(name);
  if (it == pools_.end() || !it->second.map.has_value()) return std::nullopt;
  return it->second.map->map;
}

}  // namespace kvfabric
