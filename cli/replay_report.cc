#include "cli/replay_report.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

constexpr double kExcusedS = 2;

// Whether a node that was there at `wall_s` may have gone between a yes and the read.
bool Excuses(const EventOutcome& event, double wall_s) {
  const EventKind kind = event.event.kind;
  const bool takes_away =
      kind == EventKind::kKill || kind == EventKind::kStop || kind == EventKind::kContinue;
  return takes_away && event.status.ok() && event.wall_s <= wall_s &&
         wall_s <= event.done_s + kExcusedS;
}

// Index of the event that a moment belongs to: the last one before it. A stop and its end are one
// event. Npos: before any.
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
std::size_t EventAt(const std::vector<EventOutcome>& events, double wall_s) {
  std::size_t found = kNone;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].wall_s > wall_s || !events[i].status.ok()) continue;
    if (events[i].event.kind == EventKind::kContinue) continue;
    found = i;
  }
  return found;
}

double Share(std::uint64_t tokens, const HitTokens& of) {
  return of.prompt == 0 ? 0 : 100.0 * static_cast<double>(tokens) / static_cast<double>(of.prompt);
}

double Rate(std::uint64_t bytes, double seconds) {
  return seconds <= 0 ? 0 : static_cast<double>(bytes) / 1e9 / seconds;
}

std::string Percentiles(const LatencySamples& samples) {
  if (samples.count() == 0) return "none";
  return "p50 " + FormatMicros(samples.PercentileMicros(0.5)) + ", p99 " +
         FormatMicros(samples.PercentileMicros(0.99)) + " (" + std::to_string(samples.count()) +
         " calls)";
}

Json PercentilesJson(const LatencySamples& samples) {
  return {{"p50", samples.PercentileMicros(0.5)},
          {"p99", samples.PercentileMicros(0.99)},
          {"count", samples.count()}};
}

std::string Count(std::uint64_t value) { return std::to_string(value); }

std::string FormatHits(const ReplayReport& report) {
  const HitTokens& tokens = report.tally.tokens;
  return FormatTable({
      {"prompt tokens", Count(tokens.prompt)},
      {"hit tokens", Count(tokens.hits()) + "  (" + FormatNumber(tokens.percent(), 2) + " %)"},
      {"  on the node",
       Count(tokens.local) + "  (" + FormatNumber(Share(tokens.local, tokens), 2) + " %)"},
      {"  from a peer",
       Count(tokens.peer) + "  (" + FormatNumber(Share(tokens.peer, tokens), 2) + " %)"},
  });
}

std::string FormatTraffic(const ReplayReport& report) {
  const Tally& tally = report.tally;
  const double calls_s = tally.get.total_s() + tally.put.total_s();
  return FormatTable({
      {"read", FormatBytes(static_cast<double>(tally.got_bytes)) + " at " +
                   FormatNumber(Rate(tally.got_bytes, tally.get.total_s()), 2) + " GB/s in calls"},
      {"written", FormatBytes(static_cast<double>(tally.put_bytes)) + " at " +
                      FormatNumber(Rate(tally.put_bytes, tally.put.total_s()), 2) +
                      " GB/s in calls"},
      {"both", FormatNumber(Rate(tally.got_bytes + tally.put_bytes, calls_s), 2) +
                   " GB/s in calls, " +
                   FormatNumber(Rate(tally.got_bytes + tally.put_bytes, report.wall_s), 2) +
                   " GB/s over the whole run"},
      {"lookup", Percentiles(tally.lookup)},
      {"get", Percentiles(tally.get)},
      {"put", Percentiles(tally.put)},
  });
}

std::string FormatFaults(const ReplayReport& report) {
  const Tally& tally = report.tally;
  return FormatTable({
      {"puts", Count(tally.put_ok) + " stored, " + Count(tally.put_exists) + " there already, " +
                   Count(tally.put_no_space) + " without space, " + Count(tally.put_failed) +
                   " failed"},
      {"wrong bytes", Count(tally.wrong_bytes) + " in " + Count(tally.wrong_blocks) + " blocks"},
      {"corrupt blocks", Count(tally.corrupt_blocks + report.client_counters.corrupt) +
                             " (told by their checksum: misses)"},
      {"leased, then missed",
       Count(tally.wrong_exists_at.size()) + ", of these " + Count(CountStale(report)) + " stale"},
      {"at another node",
       Count(tally.other_node) + " requests, " + Count(tally.cut_short) + " found no agent"},
  });
}

std::string FormatEvents(const ReplayReport& report) {
  if (report.events.empty()) return "";
  const std::vector<EventEffect> effects = EffectsOf(report);
  std::vector<std::vector<std::string>> rows = {
      {"EVENT", "NODE", "AT", "LAST WRONG YES", "LAST FAILED PUT", "HITS BEFORE", "HITS AFTER"}};
  for (std::size_t i = 0; i < report.events.size(); ++i) {
    const EventOutcome& event = report.events[i];
    const auto window = static_cast<std::uint32_t>(event.wall_s / report.window_s);
    const auto hits = [&](std::uint32_t at) {
      const auto found = report.tally.windows.find(at);
      return found == report.tally.windows.end() ? std::string("-")
                                                 : FormatNumber(found->second.percent(), 1) + " %";
    };
    const auto after = [&](std::uint64_t cases, double seconds) {
      return cases == 0 ? std::string("none")
                        : FormatNumber(seconds, 2) + " s (" + Count(cases) + ")";
    };
    rows.push_back({std::string(EventKindName(event.event.kind)), event.node,
                    FormatNumber(event.wall_s, 1) + " s",
                    after(effects[i].wrong_exists, effects[i].wrong_exists_s),
                    after(effects[i].failed_puts, effects[i].failed_put_s),
                    window == 0 ? "-" : hits(window - 1), hits(window + 1)});
    if (!event.status.ok()) rows.push_back({"  not done: " + event.status.ToString()});
  }
  return "\n" + FormatTable(rows);
}

Json WindowsJson(const ReplayReport& report) {
  Json windows = Json::array();
  for (const auto& [number, tokens] : report.tally.windows) {
    windows.push_back({{"from_s", number * report.window_s},
                       {"prompt_tokens", tokens.prompt},
                       {"hit_tokens", tokens.hits()},
                       {"hit_percent", tokens.percent()}});
  }
  return windows;
}

Json EventsJson(const ReplayReport& report) {
  const std::vector<EventEffect> effects = EffectsOf(report);
  Json events = Json::array();
  for (std::size_t i = 0; i < report.events.size(); ++i) {
    const EventOutcome& event = report.events[i];
    events.push_back({{"kind", EventKindName(event.event.kind)},
                      {"node", event.node},
                      {"trace_s", event.event.at_s},
                      {"wall_s", event.wall_s},
                      {"done_s", event.done_s},
                      {"error", event.status.ok() ? "" : event.status.ToString()},
                      {"wrong_exists", effects[i].wrong_exists},
                      {"wrong_exists_s", effects[i].wrong_exists_s},
                      {"failed_puts", effects[i].failed_puts},
                      {"failed_put_s", effects[i].failed_put_s}});
  }
  return events;
}

}  // namespace

std::vector<EventEffect> EffectsOf(const ReplayReport& report) {
  std::vector<EventEffect> effects(report.events.size());
  for (const double at : report.tally.wrong_exists_at) {
    const std::size_t event = EventAt(report.events, at);
    if (event == kNone) continue;
    ++effects[event].wrong_exists;
    effects[event].wrong_exists_s =
        std::max(effects[event].wrong_exists_s, at - report.events[event].wall_s);
  }
  for (const double at : report.tally.failed_put_at) {
    const std::size_t event = EventAt(report.events, at);
    if (event == kNone) continue;
    ++effects[event].failed_puts;
    effects[event].failed_put_s =
        std::max(effects[event].failed_put_s, at - report.events[event].wall_s);
  }
  return effects;
}

std::uint64_t CountStale(const ReplayReport& report) {
  std::uint64_t stale = 0;
  for (const double at : report.tally.wrong_exists_at) {
    if (std::none_of(report.events.begin(), report.events.end(),
                     [&](const EventOutcome& event) { return Excuses(event, at); })) {
      ++stale;
    }
  }
  return stale;
}

std::string FormatReport(const ReplayReport& report) {
  const Tally& tally = report.tally;
  std::string text = Count(tally.requests) + " of " + Count(report.requests_in_trace) +
                     " requests in " + FormatNumber(report.wall_s, 1) + " s, route " +
                     report.route + ", " + Count(report.clients) + " clients";
  if (report.interrupted) text += " (interrupted)";
  text += "\n\n" + FormatHits(report) + "\n" + FormatTraffic(report) + "\n" + FormatFaults(report);
  if (report.maps_seen) {
    text +=
        "\n" +
        FormatTable({{"map epochs", Count(report.first_epoch) + " to " + Count(report.last_epoch)},
                     {"moved slots", Count(report.moves.moved) + ", least possible " +
                                         Count(report.moves.bound)}});
  }
  text += FormatEvents(report);
  if (report.speed > 0 && report.late_s_max > 1)
    text += "\nrequests began up to " + FormatNumber(report.late_s_max, 1) +
            " s late: more --clients or less --speed\n";
  return text;
}

std::string ReportJson(const ReplayReport& report) {
  const Tally& tally = report.tally;
  const HitTokens& tokens = tally.tokens;
  const double calls_s = tally.get.total_s() + tally.put.total_s();
  Json json = {{"trace", report.trace},
               {"route", report.route},
               {"speed", report.speed},
               {"clients", report.clients},
               {"block_tokens", report.block_tokens},
               {"bytes_per_token", report.bytes_per_token},
               {"interrupted", report.interrupted},
               {"requests", tally.requests},
               {"requests_in_trace", report.requests_in_trace},
               {"wall_s", report.wall_s},
               {"late_s_max", report.late_s_max}};
  json.update({{"prompt_tokens", tokens.prompt},
               {"hit_tokens", tokens.hits()},
               {"hit_tokens_local", tokens.local},
               {"hit_tokens_peer", tokens.peer},
               {"hit_percent", tokens.percent()},
               {"hit_percent_local", Share(tokens.local, tokens)},
               {"hit_percent_peer", Share(tokens.peer, tokens)},
               {"got_bytes", tally.got_bytes},
               {"put_bytes", tally.put_bytes},
               {"get_gb_per_s", Rate(tally.got_bytes, tally.get.total_s())},
               {"put_gb_per_s", Rate(tally.put_bytes, tally.put.total_s())},
               {"gb_per_s", Rate(tally.got_bytes + tally.put_bytes, calls_s)},
               {"gb_per_s_wall", Rate(tally.got_bytes + tally.put_bytes, report.wall_s)}});
  json.update({{"lookup_us", PercentilesJson(tally.lookup)},
               {"get_us", PercentilesJson(tally.get)},
               {"put_us", PercentilesJson(tally.put)},
               {"puts_ok", tally.put_ok},
               {"puts_already_exists", tally.put_exists},
               {"puts_no_space", tally.put_no_space},
               {"puts_failed", tally.put_failed},
               {"wrong_blocks", tally.wrong_blocks},
               {"wrong_bytes", tally.wrong_bytes},
               {"corrupt_blocks", tally.corrupt_blocks + report.client_counters.corrupt},
               {"wrong_exists", tally.wrong_exists_at.size()},
               {"stale", CountStale(report)},
               {"other_node", tally.other_node},
               {"no_agent", tally.cut_short},
               {"misses", tally.misses},
               {"requests_at", tally.requests_at},
               {"events", EventsJson(report)},
               {"windows", WindowsJson(report)}});
  if (report.maps_seen) {
    json.update({{"first_epoch", report.first_epoch},
                 {"last_epoch", report.last_epoch},
                 {"moved_slots", report.moves.moved},
                 {"moved_slots_bound", report.moves.bound}});
  }
  return json.dump(2);
}

}  // namespace kvfabric::cli
