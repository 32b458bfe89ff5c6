#pragma once

// What happens to nodes during a replay: `--kill T[:NODE]`, `--stop T[:NODE][:FOR]`, `--add T`,
// `--drain T[:NODE]`. T and FOR are seconds of the trace. Values.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvfabric::cli {

enum class EventKind { kKill, kStop, kAdd, kDrain, kContinue };

std::string_view EventKindName(EventKind kind);

struct ReplayEvent {
  EventKind kind = EventKind::kKill;
  double at_s = 0;              // trace time
  std::string node;             // empty = the node with most requests
  std::optional<double> for_s;  // stop: until it goes on; unset = to the end of the replay
};

// INVALID_ARGUMENT names the option, what was wrong and the form it takes.
Result<ReplayEvent> ParseReplayEvent(EventKind kind, std::string_view text);

// Which node each request is at.
struct RouteSpec {
  enum class Kind { kRoundRobin, kHash, kOneNode };
  Kind kind = Kind::kRoundRobin;
  std::string node;  // kOneNode: an index into the nodes at start, or a name
};
Result<RouteSpec> ParseRoute(std::string_view text);

}  // namespace kvfabric::cli
