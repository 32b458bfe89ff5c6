// kvctl replay: plays a trace of real requests against a fabric, as engines on its nodes would, and
// reports hits, speed, and anything that was wrong. docs/replay.md.

#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "cli/fabric_view.h"
#include "cli/pool_files.h"
#include "cli/replay_maps.h"
#include "cli/replay_report.h"
#include "cli/replay_run.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct ReplayArgs {
  std::string trace;
  std::string directory;
  std::string pool;
  std::string tenant = "default";
  std::string route = "round-robin";
  std::string output = "text";
  std::string salt;
  std::uint64_t bytes_per_token = 64;
  std::uint64_t clients = 4;
  std::uint64_t requests = 0;
  double speed = 0;
  double window_s = 5;
  double settle_s = 30;
  std::vector<std::string> kill, stop, add, drain;
};

constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{16} << 20U;

struct Plan {
  FabricDirectory directory;
  FabricSettings settings;
  Trace trace;
  RouteSpec route;
  std::vector<ReplayEvent> events;
  std::string pool;
  ReplayEngines::Options engines;
};

Result<std::vector<ReplayEvent>> EventsOf(const ReplayArgs& args) {
  const std::pair<EventKind, const std::vector<std::string>*> kinds[] = {
      {EventKind::kKill, &args.kill},
      {EventKind::kStop, &args.stop},
      {EventKind::kAdd, &args.add},
      {EventKind::kDrain, &args.drain}};
  std::vector<ReplayEvent> events;
  for (const auto& [kind, texts] : kinds) {
    for (const std::string& text : *texts) {
      KVF_ASSIGN_OR_RETURN(events.emplace_back(), ParseReplayEvent(kind, text));
    }
  }
  return events;
}

Status CheckNumbers(const ReplayArgs& args, const Trace& trace) {
  const std::uint64_t block_bytes = args.bytes_per_token * trace.block_tokens;
  if (args.bytes_per_token == 0 || block_bytes > kMaxBlockBytes || block_bytes % 8 != 0)
    return InvalidArgument("--bytes-per-token " + std::to_string(args.bytes_per_token) +
                           ": a block of " + std::to_string(trace.block_tokens) +
                           " tokens must be 8 to " + std::to_string(kMaxBlockBytes) +
                           " bytes in steps of 8: write e.g. 64");
  if (args.clients == 0 || args.clients > 256)
    return InvalidArgument("--clients " + std::to_string(args.clients) +
                           ": must be 1 to 256: write e.g. 8");
  if (args.speed < 0)
    return InvalidArgument("--speed " + FormatNumber(args.speed, 2) +
                           ": must be 0 (as fast as clients can) or more: write e.g. 60");
  if (args.window_s <= 0)
    return InvalidArgument("--window " + FormatNumber(args.window_s, 2) +
                           ": must be more than 0 seconds: write e.g. 5");
  return Status::Ok();
}

Result<Plan> MakePlan(const ReplayArgs& args) {
  KVF_ASSIGN_OR_RETURN(FabricDirectory directory, FabricDirectory::At(args.directory));
  KVF_ASSIGN_OR_RETURN(FabricSettings settings, directory.LoadSettings());
  KVF_ASSIGN_OR_RETURN(std::string pool, ChoosePool(directory, args.pool));
  TraceLimits limits;
  if (args.requests != 0) limits.max_requests = args.requests;
  KVF_ASSIGN_OR_RETURN(Trace trace, LoadTrace(args.trace, limits));
  KVF_RETURN_IF_ERROR(CheckNumbers(args, trace));
  KVF_ASSIGN_OR_RETURN(RouteSpec route, ParseRoute(args.route));
  KVF_ASSIGN_OR_RETURN(std::vector<ReplayEvent> events, EventsOf(args));
  for (const ReplayEvent& event : events) {
    if (!event.node.empty() && settings.Find(event.node) == nullptr)
      return NotFound("--" + std::string(EventKindName(event.kind)) + ": node " + event.node +
                      ": not in this fabric: see kvctl node list");
  }
  ReplayEngines::Options engines;
  engines.pool = pool;
  KVF_ASSIGN_OR_RETURN(engines.token, directory.TokenOf(args.tenant));
  std::map<std::string, std::string> fingerprint = {
      {"model", "replay"},
      {"block_tokens", std::to_string(trace.block_tokens)},
      {"bytes_per_token", std::to_string(args.bytes_per_token)}};
  if (!args.salt.empty()) fingerprint["salt"] = args.salt;
  KVF_ASSIGN_OR_RETURN(engines.fingerprint, EncodeFingerprint(fingerprint));
  return Plan{.directory = std::move(directory),
              .settings = std::move(settings),
              .trace = std::move(trace),
              .route = std::move(route),
              .events = std::move(events),
              .pool = std::move(pool),
              .engines = std::move(engines)};
}

// One engine on each node, whether its agent runs or not.
Status AddEngines(const Plan& plan, ReplayEngines& engines) {
  const auto& nodes = plan.settings.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<ReplayEndpoint> endpoints;
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      const std::string& name = nodes[(i + k) % nodes.size()].name;
      endpoints.push_back({.node = name, .socket = plan.directory.agent_socket(name)});
    }
    KVF_RETURN_IF_ERROR(engines.Add(endpoints));
  }
  KVF_RETURN_IF_ERROR(engines.CheckRoute());
  return engines.WaitConnected(std::chrono::seconds(10));
}

std::string BusiestNode(const Plan& plan, ReplayEngines& engines) {
  std::map<std::string, std::uint64_t> counts;
  for (std::size_t i = 0; i < plan.trace.requests.size(); ++i)
    ++counts[engines.At(i, plan.trace.requests[i]).node];
  std::string busiest;
  for (const auto& [node, count] : counts) {
    if (busiest.empty() || count > counts[busiest]) busiest = node;
  }
  return busiest;
}

void ShowProgress(ProgressLine& line, const Plan& plan, const ReplayRun& run, ReplayClock& clock) {
  const ReplayRun::Progress now = run.progress();
  const auto total = static_cast<double>(plan.trace.requests.size());
  line.Show(static_cast<double>(now.requests) / total,
            std::to_string(now.requests) + "/" + std::to_string(plan.trace.requests.size()) +
                "  trace " + FormatNumber(clock.TraceSeconds(), 0) + " s  hits " +
                FormatNumber(now.tokens.percent(), 1) + " %  " +
                FormatBytes(static_cast<double>(now.bytes)));
}

// After the last request maps may still move: what an event did is known when they rest.
void WaitUntilSettled(ProgressLine& line, const MapWatch& maps, double budget_s) {
  const Deadline deadline = Deadline::After(
      Clock::System(), std::chrono::milliseconds(static_cast<std::int64_t>(budget_s * 1000)));
  while (!Interrupted() && !maps.settled() && !deadline.Passed(Clock::System())) {
    line.Show(-1, "waiting for slots to settle");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the map comes by polling
  }
}

ReplayReport Play(const ReplayArgs& args, const Plan& plan, ReplayEngines& engines) {
  ProgressLine line;
  MapWatch maps(plan.directory, plan.pool);
  maps.Start();
  const std::string busiest = BusiestNode(plan, engines);
  ReplayClock clock(Clock::System(), args.speed);
  ReplayConductor conductor(plan.directory, engines, clock, busiest);
  conductor.Start(plan.events);
  ReplayRun run(plan.trace, engines, clock,
                {.bytes_per_token = args.bytes_per_token,
                 .clients = args.clients,
                 .window_s = args.window_s});
  ReplayReport report;
  report.tally = run.Run([&] {
    ShowProgress(line, plan, run, clock);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a picture some times a second
    return !Interrupted();
  });
  report.wall_s = clock.WallSeconds();
  report.late_s_max = run.late_s_max();
  report.events = conductor.Finish();
  report.interrupted = Interrupted();
  if (!report.events.empty()) WaitUntilSettled(line, maps, args.settle_s);
  const std::vector<ShardMap> history = maps.Stop();
  report.maps_seen = !history.empty();
  if (report.maps_seen) {
    report.first_epoch = history.front().epoch;
    report.last_epoch = history.back().epoch;
    report.moves = CountSlotMoves(history);
  }
  return report;
}

ExitCode Run(const ReplayArgs& args) {
  const Result<Plan> plan = MakePlan(args);
  if (!plan.ok()) return Fail(plan.status());
  ReplayEngines engines(plan->engines, plan->route);
  const Status connected = AddEngines(*plan, engines);
  if (!connected.ok()) return Fail(connected);
  ReplayReport report = Play(args, *plan, engines);
  report.client_counters = engines.Counters();
  report.trace = args.trace;
  report.route = args.route;
  report.speed = args.speed;
  report.window_s = args.window_s;
  report.block_tokens = plan->trace.block_tokens;
  report.bytes_per_token = args.bytes_per_token;
  report.requests_in_trace = plan->trace.requests.size();
  report.clients = args.clients;
  std::printf("%s\n",
              args.output == "json" ? ReportJson(report).c_str() : FormatReport(report).c_str());
  if (report.tally.wrong_bytes > 0) return ExitCode::kWrongBytes;
  if (report.interrupted) return ExitCode::kInterrupted;
  for (const EventOutcome& event : report.events) {
    if (!event.status.ok()) return ExitCode::kFailed;
  }
  return ExitCode::kOk;
}

void AddOptions(ReplayArgs& args, std::vector<Option>& options) {
  const auto add = [&](const char* names, Option::Target target, const char* help) {
    options.push_back(
        {.names = names, .target = target, .help = help, .required = false, .choices = {}});
  };
  options.push_back({.names = "trace",
                     .target = &args.trace,
                     .help = "trace file, JSON lines, plain or .gz",
                     .required = true,
                     .choices = {}});
  options.push_back(DirectoryOption(&args.directory));
  add("--pool", &args.pool, "NAMESPACE/NAME (default: the only one)");
  add("--tenant", &args.tenant, "whose blocks they are");
  add("--route", &args.route, "round-robin, hash (by the block at depth 1), or node=I");
  add("--speed", &args.speed, "trace seconds in a second; 0 = as fast as clients can");
  add("--clients", &args.clients, "requests at once");
  add("--requests", &args.requests, "only so many from the start; 0 = all");
  add("--bytes-per-token", &args.bytes_per_token, "size of the KV of one token");
  add("--kill", &args.kill, "T[:NODE]: SIGKILL an agent at trace second T; repeatable");
  add("--stop", &args.stop, "T[:NODE][:FOR]: SIGSTOP an agent, for FOR trace seconds; repeatable");
  add("--add", &args.add, "T: add a node; repeatable");
  add("--drain", &args.drain, "T[:NODE]: drain a node; repeatable");
  add("--window", &args.window_s, "seconds of one point of the hit curve");
  add("--settle", &args.settle_s, "seconds to wait for slots to settle after events");
  add("--salt", &args.salt, "makes blocks that no other replay has");
  options.push_back(OutputOption(&args.output));
}

}  // namespace

Command ReplayCommand() {
  auto args = std::make_shared<ReplayArgs>();
  Command command{
      .name = "replay",
      .summary = "Play a trace of requests against the fabric and report what came of it",
      .example =
          "kvctl replay examples/conversation_200.jsonl\n"
          "  kvctl replay examples/conversation_200.jsonl --speed 20 "
          "--route hash --kill 200 --add 400",
      .options = {},
      .run = [args] { return Run(*args); }};
  AddOptions(*args, command.options);
  return command;
}

}  // namespace kvfabric::cli
