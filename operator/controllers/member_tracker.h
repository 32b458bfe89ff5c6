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
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/controllers/agent_registry.h"
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
  Clock::TimePoint leading_since{};
  // A live look: true when the API says the Node does not exist. Asked before a node that the
  // cache misses is called gone.
  std::function<bool(const std::string&)> node_is_gone;
};

// A member as it should be, and how it does.
struct TrackedMember {
  PlanMember plan;
  bool serving = false;   // connected, self-test passes
  bool drained = false;   // has reported that nothing is left to move
  bool from_map = false;  // was in the stored map
};

class MemberTracker {
 public:
  struct Options {
    std::chrono::milliseconds suspect_after{3000};
    // The first map waits until the agents there are have been ready this long without a newcomer,
    // and at most so long for those that are not.
    std::chrono::milliseconds settle{500};
    std::chrono::milliseconds first_map_patience{10'000};
  };

  explicit MemberTracker(Options options) : options_(options) {}

  // Members of the next map, those of `stored` first. `stored` may be null.
  std::vector<TrackedMember> Observe(const Pool& pool, const ShardMap* stored, const World& world);
  // Whether a first map may be made of these members now.
  bool MayBegin(const Pool& pool, const std::vector<TrackedMember>& members, const World& world);
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
  MemberState NextState(const Pool& pool, const ShardMap& stored, MemberIndex index,
                        const World& world);
  void Ramp(const PoolSpec& spec, const ShardMap* stored, Member* member, PlanMember* plan,
            Clock::TimePoint now);

  const Options options_;
  std::map<std::string, Join> joins_;  // by node name
  std::optional<Clock::TimePoint> first_candidate_;
  std::optional<Clock::TimePoint> last_newcomer_;
  std::size_t candidates_ = 0;
};

}  // namespace kvfabric
