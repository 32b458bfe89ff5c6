#pragma once

// ReplayReport: everything a replay found, as text for people and as JSON for scripts (the fields
// are listed in docs/replay.md). Pure.

#include <string>
#include <vector>

#include "cli/replay_conductor.h"
#include "cli/replay_tally.h"
#include "cli/slot_moves.h"
#include "client/client.h"

namespace kvfabric::cli {

struct ReplayReport {
  std::string trace;
  std::string route;
  double speed = 0;
  double wall_s = 0;
  double late_s_max = 0;
  double window_s = 5;
  std::uint32_t block_tokens = 0;
  std::uint64_t bytes_per_token = 0;
  std::uint64_t requests_in_trace = 0;
  std::size_t clients = 0;
  bool interrupted = false;
  Tally tally;
  ClientCounters client_counters;
  std::vector<EventOutcome> events;
  // Of the pool's maps; unset fields of a replay with the operator down stay 0 and `maps_seen`
  // false.
  bool maps_seen = false;
  std::uint64_t first_epoch = 0, last_epoch = 0;
  SlotMoves moves;
};

// What one event did: the last wrong yes and the last failed put before the next event.
struct EventEffect {
  double wrong_exists_s = 0;
  double failed_put_s = 0;
  std::uint64_t wrong_exists = 0;
  std::uint64_t failed_puts = 0;
};
std::vector<EventEffect> EffectsOf(const ReplayReport& report);
// Leased blocks that missed more than 2 s from any kill, stop or its end: within 2 s every agent
// knows that the node is away, and says no. The report does not know which node held a block.
std::uint64_t CountStale(const ReplayReport& report);

std::string FormatReport(const ReplayReport& report);
std::string ReportJson(const ReplayReport& report);

}  // namespace kvfabric::cli
