#pragma once

// MemberTracker: the states of one pool's members, from what is known of nodes and agents. Level-
// based: it looks at the stored map and at the world, and keeps in memory only when members began
// to join. One per pool and term.
//
// On the control loop's thread. No I/O; that a Node is really gone is asked through a function.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/controllers/agent_registry.h"
#include "operator/controllers/flap_penalty.h"
#include "operator/controllers/loss_brake.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/pool_spec.h"
#include "placement/planner.h"
#include "placement/shard_map.h"

namespace kvfabric {

using NodeSnapshot = std::map<kube::ObjectName, std::shared_ptr<const NodeFacts>>;

struct World {
  const NodeSnapshot* nodes = nullptr;      // borrowed
  const AgentRegistry* registry = nullptr;  // borrowed
  Clock::TimePoint now{};
  std::int64_t now_unix_us = 0;
  Clock::TimePoint leading_since{};
  // A live look: true when the API says the Node does not exist. Asked before a node that the
  // cache misses is called gone.
  std::function<bool(const std::string&)> node_is_gone;
};

// A member as it should be, and how it does.
struct TrackedMember {
  PlanMember plan;
  bool serving = false;    // connected, self-test passes
  bool drained = false;    // has reported that nothing is left to move
  bool from_map = false;   // was in the stored map
  bool held_back = false;  // lost, back, and held by the flap penalty
};

class MemberTracker {
 public:
  struct Options {
    std::chrono::milliseconds suspect_after{3000};
    // The first map waits until the agents there are have been ready this long without a newcomer,
    // and at most so long for those that are not.
    std::chrono::milliseconds settle{500};
    std::chrono::milliseconds first_map_patience{10'000};
    FlapPenalty::Options flaps{};
    LossBrakeRules brake{};
  };

  explicit MemberTracker(Options options) : options_(options), flaps_(options.flaps) {}

  // Members of the next map, those of `stored` first. `stored` may be null. `hold_joins`: newcomers
  // become members, but their ramp does not begin (and stands still while many nodes are silent).
  std::vector<TrackedMember> Observe(const Pool& pool, const ShardMap* stored, const World& world,
                                     bool hold_joins);
  // Whether a first map may be made of these members now.
  bool MayBegin(const Pool& pool, const std::vector<TrackedMember>& members, const World& world);
  // Silent nodes that the mass-failure brake kept from being given up at the last look. While there
  // are any, nothing moves.
  const std::set<std::string>& mass_failure() const { return mass_failure_; }
  std::vector<UnstableNodeStatus> UnstableNodes() const { return flaps_.List(); }
  // What an earlier leader knew of nodes that fail again and again.
  void Restore(const std::vector<UnstableNodeStatus>& unstable, const World& world) {
    flaps_.Restore(unstable, world.now, world.now_unix_us);
  }

  // Agents that should become members: pods on nodes that fit.
  static std::uint32_t CountDesired(const PoolSpec& spec, const World& world);

 private:
  struct Join {
    Clock::TimePoint began{};
    bool done = false;
  };

  std::optional<TrackedMember> Follow(const Pool& pool, const ShardMap& stored, MemberIndex index,
                                      const World& world);
  std::optional<TrackedMember> Admit(const Pool& pool, const NodeAgent& agent, const World& world);
  // Of a member of the stored map, whose silence counts from the start of this leadership.
  std::chrono::milliseconds SilenceOf(const std::string& node, const World& world) const;
  void LookForMassFailure(const Pool& pool, const ShardMap& stored, const World& world);
  MemberState NextState(const Pool& pool, const ShardMap& stored, MemberIndex index,
                        const World& world);
  void Ramp(const PoolSpec& spec, const ShardMap* stored, Member* member, PlanMember* plan,
            Clock::TimePoint now);

  const Options options_;
  FlapPenalty flaps_;
  std::set<std::string> mass_failure_;
  bool hold_joins_ = false;
  std::map<std::string, Join> joins_;  // by node name
  std::optional<Clock::TimePoint> first_candidate_;
  std::optional<Clock::TimePoint> last_newcomer_;
  std::size_t candidates_ = 0;
};

}  // namespace kvfabric
