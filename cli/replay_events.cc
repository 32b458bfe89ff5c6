#include "cli/replay_events.h"

#include <cmath>
#include <cstdlib>

namespace kvfabric::cli {
namespace {

std::string_view FormOf(EventKind kind) {
  switch (kind) {
    case EventKind::kKill:
      return "--kill T[:NODE]";
    case EventKind::kStop:
      return "--stop T[:NODE][:FOR]";
    case EventKind::kAdd:
      return "--add T";
    case EventKind::kDrain:
      return "--drain T[:NODE]";
    case EventKind::kContinue:
      break;
  }
  return "";
}

std::optional<double> ParseSeconds(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

std::size_t MaxParts(EventKind kind) {
  if (kind == EventKind::kAdd) return 1;
  return kind == EventKind::kStop ? 3 : 2;
}

}  // namespace

std::string_view EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kKill:
      return "kill";
    case EventKind::kStop:
      return "stop";
    case EventKind::kAdd:
      return "add";
    case EventKind::kDrain:
      return "drain";
    case EventKind::kContinue:
      return "continue";
  }
  return "";
}

Result<ReplayEvent> ParseReplayEvent(EventKind kind, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(std::string(FormOf(kind)) + ": `" + std::string(text) +
                           "`: " + std::string(why) + " (T and FOR are seconds of the trace)");
  };
  const std::vector<std::string_view> parts = Split(text);
  if (parts.size() > MaxParts(kind)) return refuse("too many parts");
  ReplayEvent event{.kind = kind, .at_s = 0, .node = "", .for_s = std::nullopt};
  const auto at = ParseSeconds(parts[0]);
  if (!at) return refuse("T must be a number >= 0");
  event.at_s = *at;
  std::size_t next = 1;
  // A node's name is no number, so `--stop 10:5` means FOR.
  const bool only_for = kind == EventKind::kStop && parts.size() == 2 && ParseSeconds(parts[1]);
  if (next < parts.size() && !only_for) event.node = parts[next++];
  if (next < parts.size()) {
    event.for_s = ParseSeconds(parts[next]);
    if (!event.for_s) return refuse("FOR must be a number >= 0");
  }
  return event;
}

Result<RouteSpec> ParseRoute(std::string_view text) {
  if (text == "round-robin") return RouteSpec{.kind = RouteSpec::Kind::kRoundRobin, .node = ""};
  if (text == "hash") return RouteSpec{.kind = RouteSpec::Kind::kHash, .node = ""};
  constexpr std::string_view kNode = "node=";
  if (text.starts_with(kNode) && text.size() > kNode.size())
    return RouteSpec{.kind = RouteSpec::Kind::kOneNode,
                     .node = std::string(text.substr(kNode.size()))};
  return InvalidArgument("--route: `" + std::string(text) +
                         "`: must be round-robin, hash or node=I (an index from 0, or a name)");
}

}  // namespace kvfabric::cli
