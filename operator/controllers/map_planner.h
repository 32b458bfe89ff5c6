#pragma once

// MapPlanner decides when one pool needs a new shard map and makes it with placement's planners.
// A new epoch has a cause: members came, left, moved or changed their share; slots are still to
// move for balance; or an agent knows a higher epoch. Nothing else makes one, so a restart of the
// operator moves nothing.
//
// One per pool and term, on the control loop's thread. No I/O; remembers only the pace of moves.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/controllers/member_tracker.h"
#include "operator/specs/pool_spec.h"
#include "placement/planner.h"

namespace kvfabric {

struct MapChange {
  ShardMap map;             // term and epoch set
  std::uint32_t moved = 0;  // byte entries that change hands
  std::uint64_t moved_bytes = 0;
  std::uint32_t remaining = 0;          // byte entries still to move for balance
  std::vector<std::string> newly_lost;  // nodes
  std::uint32_t lost_slots = 0;         // slots of which they kept bytes
  std::string reason;                   // for logs and status
};

class MapPlanner {
 public:
  struct Input {
    const Pool* pool = nullptr;
    const ShardMap* stored = nullptr;  // null = none yet
    const std::vector<TrackedMember>* members = nullptr;
    // Moves that only balance may be made; else only what loss, drain and leaving demand.
    bool may_balance = true;
    bool work_left = false;           // moves for balance are known to be left: plan again
    std::uint64_t highest_epoch = 0;  // that any agent reports
    std::uint64_t term = 0;
    std::uint64_t bytes_per_slot = 0;  // for the cost of moves; 0 = not known
    Clock::TimePoint now{};
  };
  struct Options {
    std::chrono::milliseconds pace{1000};  // between maps that only balance
  };

  explicit MapPlanner(Options options) : options_(options) {}

  // Nullopt: the stored map stands.
  Result<std::optional<MapChange>> Next(const Input& input);
  std::uint32_t remaining() const { return remaining_; }

 private:
  std::string Cause(const Input& input);
  bool SharesMoved(const std::vector<TrackedMember>& members) const;
  void Remember(const Input& input, const PlanResult& plan);

  const Options options_;
  std::map<std::string, std::uint32_t> shares_;  // permille planned last, of joining members
  // There may be slots to move for balance. A new leader does not know whether its predecessor was
  // done: it looks once.
  bool unbalanced_ = true;
  std::uint32_t remaining_ = 0;
  std::optional<Clock::TimePoint> last_change_;
};

}  // namespace kvfabric
