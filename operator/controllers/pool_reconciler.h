#pragma once

// PoolReconciler makes one pool true: judges its config, follows its members, writes its shard map
// and its status, and hands maps to the agents. Level-based: every call looks at everything.
//
// On the control loop's thread, while leading. Writes: the KVCacheShardMap when there is a cause
// (resourceVersion-guarded), the status when a condition flips and else at most every 10 s.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "operator/controllers/agent_registry.h"
#include "operator/controllers/capacity_check.h"
#include "operator/controllers/connection_config.h"
#include "operator/controllers/map_planner.h"
#include "operator/controllers/member_tracker.h"
#include "operator/controllers/proposal.h"
#include "operator/kube/event_recorder.h"
#include "operator/kube/informer.h"
#include "operator/kube/kube_api.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/pool_spec.h"
#include "operator/specs/shard_map_object.h"

namespace kvfabric {

class PoolReconciler {
 public:
  struct Options {
    MemberTracker::Options tracker{};
    MapPlanner::Options planner{};
    ConnectionConfig::Options connection{};
    kube::EventRecorder::Options events{};
    std::chrono::milliseconds status_period{10'000};
    // After a change of leaders the agents get this long to report before the status is touched.
    std::chrono::milliseconds hold_status{5'000};
  };
  struct Caches {
    const kube::Informer<Pool>* pools = nullptr;
    const kube::Informer<ShardMapObject>* maps = nullptr;
    const kube::Informer<NodeFacts>* nodes = nullptr;
  };

  PoolReconciler(kube::KubeClient& api, const Caches& caches, AgentRegistry& registry,
                 const Clock& clock, Options options);

  void StartTerm(std::uint64_t term);
  // An error is tried again after a backoff.
  Status Reconcile(const kube::ObjectName& name);
  // Tells every agent of its pools, maps and drains; after reconciling. Nothing is sent before
  // each pool has been looked at in this term: a list that lacks one would drop its blocks.
  void Push();

  // For metrics and tests.
  std::optional<ShardMap> map(const kube::ObjectName& name) const;
  std::uint64_t map_writes() const { return map_writes_; }
  std::uint64_t status_writes() const { return status_writes_; }
  const kube::EventRecorder& events() const { return events_; }
  struct Held {
    std::size_t mass_failure = 0;  // silent members that the brake keeps
    std::size_t flapping = 0;      // members that are back and get no slots yet
    std::size_t proposals = 0;     // that wait for a person
  };
  Held held() const;

 private:
  struct State {
    explicit State(const Options& options)
        : tracker(options.tracker), planner(options.planner), connection(options.connection) {}
    MemberTracker tracker;
    MapPlanner planner;
    Proposer proposer;
    ConnectionConfig connection;
    std::shared_ptr<const Pool> pool;
    bool seen_in_term = false;
    std::optional<ShardMapObject> map;
    std::uint64_t written_version = 0;                       // of the pool, by us
    std::shared_ptr<const std::string> bytes;                // the map as agents get it
    std::pair<std::uint64_t, std::uint64_t> bytes_of{0, 0};  // term and epoch in it
    std::optional<AgentPoolConfig> config;                   // as agents get it
    std::vector<TrackedMember> members;
    std::uint32_t migrating = 0;
    std::optional<RebalanceStatus> rebalance;  // unset: go on from the stored one
    std::optional<NodeLossStatus> loss;
    std::optional<Clock::TimePoint> status_written;
  };
  struct Judgement {
    std::string reason;  // "" = valid
    std::string message;
  };

  Judgement Judge(const Pool& pool);
  World Look() const;
  void TakeMap(const kube::ObjectName& name, State* state) const;
  Status FollowMap(State* state, const World& world);
  // What may be moved for balance now: by the mode, the brakes and the agents' progress.
  Status MayBalance(State* state, Proposer::Verdict* verdict, bool* may) const;
  static bool HoldJoins(const Pool& pool);
  Status WriteMap(State* state, MapChange change);
  void NoteChange(const MapChange& change, bool first, State* state) const;
  Status WriteStatus(State* state, const World& world, const Judgement& judgement);
  // The ConfigMap for engines wired by hand; failures are told and tried again later.
  void KeepConnection(State* state, const World& world);
  void TellEvents(const Pool& pool, const PoolStatus& written);
  bool StatusIsSettled(const State& state, const World& world) const;
  Status Forget(const kube::ObjectName& name);
  void RefreshBytes(State* state) const;
  std::uint64_t BytesPerSlot(const Pool& pool) const;
  bool BelongsTo(const State& state, const std::string& node) const;

  kube::KubeClient& api_;  // borrowed, as all below
  const Caches caches_;
  AgentRegistry& registry_;
  const Clock& clock_;
  const Options options_;
  std::uint64_t term_ = 0;
  Clock::TimePoint leading_since_{};
  kube::EventRecorder events_;
  CapacityCheck capacity_;
  std::map<kube::ObjectName, State> pools_;
  std::uint64_t map_writes_ = 0;
  std::uint64_t status_writes_ = 0;
};

}  // namespace kvfabric
