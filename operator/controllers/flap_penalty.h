#pragma once

// FlapPenalty: a node that keeps failing and coming back waits longer each time before it may own
// slots again, so that it cannot make a pool move bytes to and fro. The first return is free; from
// the second on the hold doubles, up to an hour. Calm after the hold takes failures away again.
//
// A node that returns within nodeLossGracePeriod has kept its slots and keeps them: only one that
// was given up is held back. Failures count in both cases.
//
// One per pool, on the control loop's thread. Times are the caller's. A new leader restores what
// the pool's status says (status.unstableNodes).

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/specs/pool_spec.h"

namespace kvfabric {

class FlapPenalty {
 public:
  struct Options {
    std::chrono::milliseconds first_hold{30'000};
    std::chrono::milliseconds longest_hold{3'600'000};
    std::chrono::milliseconds calm{600'000};  // after the hold: takes one failure away
  };

  explicit FlapPenalty(Options options) : options_(options) {}

  // What a look found: the node is down, or up. Up after down is a failure that ended.
  void See(const std::string& node, bool down, Clock::TimePoint now, std::int64_t now_unix_us);
  bool Holds(const std::string& node, Clock::TimePoint now) const;
  // Drops nodes that no longer exist.
  void Retain(const std::function<bool(const std::string&)>& exists);

  // For the status: nodes with more than one failure, most first, at most kMaxUnstableNodes.
  std::vector<UnstableNodeStatus> List() const;
  // Takes over from a status, where it knows nothing better.
  void Restore(const std::vector<UnstableNodeStatus>& stored, Clock::TimePoint now,
               std::int64_t now_unix_us);

 private:
  struct Record {
    std::uint32_t failures = 0;
    bool down = false;
    Clock::TimePoint held_until{};
    std::int64_t held_until_unix_us = 0;  // the same, for the status: as it was when it was set
    Clock::TimePoint calm_since{};
  };
  std::chrono::milliseconds HoldAfter(std::uint32_t failures) const;

  const Options options_;
  std::map<std::string, Record> nodes_;  // those that are down or have failures
};

}  // namespace kvfabric
