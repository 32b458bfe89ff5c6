#include "agent/cluster/control_desk.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/log.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {

ControlDesk::ControlDesk(const NodeContext& context, PoolTable& pools, Gate& gate,
                         std::filesystem::path state_directory)
    : context_(context), pools_(pools), gate_(gate), store_(std::move(state_directory)) {}

void ControlDesk::Restore() {
  MutexLock lock(mu_);
  Result<StoredPools> stored = store_.LoadPools();
  if (!stored.ok()) {
    LogWarn("stored pools are not used", {{"reason", stored.status().message()}});
    return;
  }
  term_ = stored->term;
  for (PoolSpecForAgent& spec : stored->pools) {
    const std::string uid = spec.uid;
    if (const Status applied = ApplyPool(std::move(spec)); !applied.ok()) {
      LogWarn("stored pool is not used", {{"reason", applied.message()}});
      continue;
    }
    Result<std::optional<ShardMap>> map = store_.LoadMap(uid);
    if (!map.ok()) LogWarn("stored map is not used", {{"reason", map.status().message()}});
    if (!map.ok() || !map->has_value()) continue;
    const Status taken = TakeMap(pools_.Find(uid), std::move(**map), false);
    if (!taken.ok()) LogWarn("stored map is not used", {{"reason", taken.message()}});
  }
  UpdatePeers();
}

Status ControlDesk::CheckTerm(std::uint64_t term) const {
  MutexLock lock(mu_);
  if (term >= term_) return Status::Ok();
  return FailedPrecondition("order of term " + std::to_string(term) + ": refused: term " +
                            std::to_string(term_) + " was seen");
}

// A pool UID that is new here starts a new sequence (a new operator with a store of its own), so
// only a list that names known pools, or none at all, can be too old. Which operator may speak at
// all is agent/service/control_fence.h's.
Status ControlDesk::CheckPoolsFence(std::uint64_t term,
                                    const std::vector<PoolSpecForAgent>& pools) {
  if (term >= term_) return Status::Ok();
  const bool known = std::ranges::any_of(
      pools, [this](const PoolSpecForAgent& pool) { return pools_.Find(pool.uid) != nullptr; });
  if (!pools.empty() && !known) return Status::Ok();
  return FailedPrecondition("pool list of term " + std::to_string(term) + ": refused: term " +
                            std::to_string(term_) + " was seen");
}

Status ControlDesk::ApplyPool(PoolSpecForAgent spec) {
  KVF_RETURN_IF_ERROR(ValidatePoolUid(spec.uid));
  if (const PoolRef known = pools_.Find(spec.uid); known != nullptr) {
    return known->Reconfigure(std::move(spec));
  }
  KVF_ASSIGN_OR_RETURN(PoolRef pool, PoolNode::Create(std::move(spec), context_));
  LogInfo("pool started", {{"pool", pool->name()}, {"uid", pool->uid()}});
  pools_.Insert(std::move(pool));
  return Status::Ok();
}

Status ControlDesk::ApplyPools(std::uint64_t term, std::vector<PoolSpecForAgent> pools) {
  MutexLock lock(mu_);
  KVF_RETURN_IF_ERROR(CheckPoolsFence(term, pools));
  term_ = term;
  std::unordered_set<std::string> wanted;
  for (const PoolSpecForAgent& pool : pools) wanted.insert(pool.uid);
  for (const PoolRef& pool : pools_.All()) {
    if (wanted.contains(pool->uid())) continue;
    LogInfo("pool is gone", {{"pool", pool->name()}, {"uid", pool->uid()}});
    pools_.Retire(pool->uid());
    const Status removed = store_.RemoveMap(pool->uid());
    if (!removed.ok()) LogWarn("stored map stays", {{"reason", removed.message()}});
  }
  std::string faults;
  StatusCode code = StatusCode::kOk;
  StoredPools stored{term, {}};
  for (PoolSpecForAgent& pool : pools) {
    const Status applied = ApplyPool(pool);
    if (applied.ok()) {
      stored.pools.push_back(std::move(pool));
      continue;
    }
    // One that runs with an older configuration goes on with it.
    if (const PoolRef known = pools_.Find(pool.uid); known != nullptr) {
      stored.pools.push_back(*known->spec());
    }
    code = applied.code();
    faults += (faults.empty() ? "" : "; ") + applied.message();
  }
  UpdatePeers();
  if (const Status saved = store_.SavePools(stored); !saved.ok()) {
    LogError("pools are not stored: a restart without the operator would lose them",
             {{"reason", saved.message()}});
  }
  return code == StatusCode::kOk ? Status::Ok() : Status(code, faults);
}

Status ControlDesk::TakeMap(const PoolRef& pool, ShardMap map, bool save) {
  if (map.slot_count != pool->spec()->slots) {
    return InvalidArgument("shard map of pool " + pool->name() + ": apply: has " +
                           std::to_string(map.slot_count) + " slots, the pool " +
                           std::to_string(pool->spec()->slots));
  }
  const SharedRouting now = pool->routing();
  KVF_RETURN_IF_ERROR(CheckMapFence(now != nullptr ? &now->map() : nullptr, map));
  if (now != nullptr && now->map() == map) return Status::Ok();
  if (save) {
    if (const Status saved = store_.SaveMap(map); !saved.ok()) {
      LogError("map is not stored: a restart without the operator would lose it",
               {{"reason", saved.message()}});
    }
  }
  auto shared = std::make_shared<const ShardMap>(std::move(map));
  pool->SetRouting(PoolRouting::Make(std::move(shared), now, context_.self, *context_.names,
                                     context_.clock->Now()));
  return Status::Ok();
}

Status ControlDesk::ApplyMap(std::string_view pool_uid, std::string_view shard_map) {
  Result<ShardMap> map = ParseShardMap(AsBytes(shard_map));
  if (!map.ok()) return map.status();
  if (map->pool_uid != pool_uid) {
    return InvalidArgument("shard map: apply: is of pool " + map->pool_uid + ", sent for pool " +
                           std::string(pool_uid));
  }
  MutexLock lock(mu_);
  const PoolRef pool = pools_.Find(std::string(pool_uid));
  if (pool == nullptr) {
    return NotFound("shard map: apply: pool " + std::string(pool_uid) + " is not on this node");
  }
  KVF_RETURN_IF_ERROR(TakeMap(pool, std::move(map).value(), true));
  UpdatePeers();
  return Status::Ok();
}

void ControlDesk::UpdatePeers() {
  std::vector<PeerAddress> peers;
  std::unordered_set<std::string> named;
  for (const PoolRef& pool : pools_.All()) {
    const SharedRouting routing = pool->routing();
    if (routing == nullptr) continue;
    for (const Member& member : routing->map().members) {
      if (member.node_name == context_.self.node_name) continue;
      // Two agents of one name: the one that the routing takes.
      const Member* taken = routing->FindMember(context_.names->Find(member.node_name));
      if (taken == nullptr || !named.insert(taken->node_name).second) continue;
      peers.push_back({taken->node_name, taken->agent_uid, taken->address, taken->grpc_port});
    }
  }
  context_.peers->SetPeers(peers);
}

void ControlDesk::FinishRefresh(const std::string& pool_uid) {
  MutexLock lock(refresh_mu_);
  const auto found = refreshing_.find(pool_uid);
  if (--found->second == 0) refreshing_.erase(found);
}

void ControlDesk::RefreshMap(const std::string& pool_uid, NodeIndex peer, Deadline deadline,
                             std::function<void()> done) {
  const LinkRef link = context_.peers->Link(peer);
  std::shared_ptr<Gate::Pass> pass = gate_.EnterShared();
  bool refuse = link == nullptr || !pass;
  if (!refuse) {
    MutexLock lock(refresh_mu_);
    std::size_t& running = refreshing_[pool_uid];
    refuse = running >= kMaxRefreshes;
    if (!refuse) ++running;
  }
  if (refuse) {
    done();
    return;
  }
  link->FetchMap(pool_uid, deadline, [this, pass, pool_uid, done](Result<std::string> map) {
    // Writes a file: off the link's thread.
    auto task = [this, pass, pool_uid, done, map = std::move(map)] {
      if (map.ok() && !map->empty()) {
        const Status taken = ApplyMap(pool_uid, *map);
        if (!taken.ok()) LogDebug("a peer's map is not taken", {{"reason", taken.message()}});
      }
      FinishRefresh(pool_uid);
      done();
    };
    if (context_.background->Submit(task)) return;
    FinishRefresh(pool_uid);
    done();
  });
}

}  // namespace kvfabric
