// kvctl status: pools and nodes of a fabric. With the operator down it says so and shows what the
// operator last wrote.

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/fabric_view.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

struct StatusArgs {
  std::string directory;
  std::string output = "text";
  bool watch = false;
};

std::string Ready(const PoolView& pool) {
  return std::string(kube::ConditionStatusName(pool.condition("Ready")));
}

std::string Used(const PoolView& pool) {
  if (pool.status().tiers.empty()) return "-";
  const TierStatus& tier = pool.status().tiers[0];
  return FormatBytes(static_cast<double>(tier.used_bytes)) + " of " +
         FormatBytes(static_cast<double>(tier.total_bytes));
}

std::string PoolTable(const FabricView& view) {
  std::vector<std::vector<std::string>> rows = {
      {"POOL", "READY", "MEMBERS", "EPOCH", "USED", "HIT", "REBALANCE"}};
  for (const PoolView& pool : view.pools) {
    rows.push_back({pool.name, Ready(pool),
                    std::to_string(pool.status().members.ready) + "/" +
                        std::to_string(pool.status().members.desired),
                    std::to_string(pool.map ? pool.map->epoch : 0), Used(pool),
                    pool.status().hit_ratio.empty() ? "-" : pool.status().hit_ratio,
                    pool.status().rebalance.state.empty() ? "-" : pool.status().rebalance.state});
  }
  return view.pools.empty() ? "no pools: kvctl up -f POOL.yaml applies one\n" : FormatTable(rows);
}

// What is not as it should be, with the operator's own words.
std::string Complaints(const FabricView& view) {
  std::string text;
  for (const PoolView& pool : view.pools) {
    for (const kube::Condition& condition : pool.status().conditions) {
      const bool bad_when_true = condition.type == "Degraded" || condition.type == "Progressing";
      const bool bad = bad_when_true ? condition.status == kube::ConditionStatus::kTrue
                                     : condition.status == kube::ConditionStatus::kFalse;
      if (!bad) continue;
      text += "  " + pool.name + ": " + condition.type + "=" +
              std::string(kube::ConditionStatusName(condition.status)) + " " + condition.reason +
              ": " + condition.message + "\n";
    }
  }
  return text.empty() ? text : "\n" + text;
}

std::string NodeTable(const FabricView& view) {
  const bool zones = !view.nodes.empty() && !view.nodes[0].node.zone.empty();
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "ZONE", "AGENT", "PID", "HTTP", "POOL", "STATE", "FIRST OWNER OF", "DIRECTORY OF"}};
  for (const NodeView& node : view.nodes) {
    std::vector<std::string> row = {node.node.name, zones ? node.node.zone : "-",
                                    std::string(ProcessStateName(node.process)),
                                    node.pid == 0 ? "-" : std::to_string(node.pid),
                                    "127.0.0.1:" + std::to_string(node.node.ports.http)};
    const std::size_t own = row.size();
    // A line a pool; what is the node's own stands on the first.
    for (const PoolView& pool : view.pools) {
      const auto member = pool.map ? MembershipOf(*pool.map, node.node.name) : std::nullopt;
      if (!member) continue;
      row.insert(row.end(), {pool.name, std::string(MemberStateName(member->state)),
                             std::to_string(member->first_owner_slots) + " slots",
                             std::to_string(member->owner_slots) + " slots"});
      rows.push_back(row);
      row.assign(own, "");
    }
    if (row[0].empty()) continue;
    row.insert(row.end(), {"-", "-", "-", "-"});
    rows.push_back(row);
  }
  return FormatTable(rows);
}

std::string TextOf(const FabricView& view) {
  std::string text = "operator: " + std::string(ProcessStateName(view.operator_process)) + "\n";
  if (view.from_files)
    text += view.why_files + "\nWhat follows is what it last wrote; agents go on without it.\n";
  return text + "\n" + PoolTable(view) + Complaints(view) + "\n" + NodeTable(view);
}

Json NodeJson(const FabricView& view, const NodeView& node) {
  Json pools = Json::object();
  for (const PoolView& pool : view.pools) {
    const auto member = pool.map ? MembershipOf(*pool.map, node.node.name) : std::nullopt;
    if (!member) continue;
    pools[pool.name] = {{"state", MemberStateName(member->state)},
                        {"firstOwnerSlots", member->first_owner_slots},
                        {"ownerSlots", member->owner_slots}};
  }
  return {{"name", node.node.name},
          {"zone", node.node.zone},
          {"agent", ProcessStateName(node.process)},
          {"pid", node.pid},
          {"grpc", node.node.ports.grpc},
          {"bulk", node.node.ports.bulk},
          {"http", node.node.ports.http},
          {"pools", pools}};
}

std::string JsonOf(const FabricView& view) {
  Json json = {{"operator", ProcessStateName(view.operator_process)},
               {"fromFiles", view.from_files},
               {"pools", Json::array()},
               {"nodes", Json::array()}};
  for (const PoolView& pool : view.pools) {
    Json entry = Json::parse(pool.json, nullptr, false);
    json["pools"].push_back({{"name", pool.name},
                             {"ready", pool.ready()},
                             {"epoch", pool.map ? pool.map->epoch : 0},
                             {"term", pool.map ? pool.map->term : 0},
                             {"status", entry.value("status", Json::object())},
                             {"spec", entry.value("spec", Json::object())}});
  }
  for (const NodeView& node : view.nodes) json["nodes"].push_back(NodeJson(view, node));
  return json.dump(2) + "\n";
}

ExitCode ShowOnce(const FabricDirectory& directory, const StatusArgs& args, bool redraw) {
  const Result<FabricView> view = LoadView(directory);
  if (!view.ok()) return Fail(view.status());
  const std::string text = args.output == "json" ? JsonOf(*view) : TextOf(*view);
  if (redraw) std::printf("\x1b[H\x1b[2J");
  std::printf("%s", text.c_str());
  std::fflush(stdout);
  return view->from_files ? ExitCode::kNotRunning : ExitCode::kOk;
}

ExitCode Run(const StatusArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const bool redraw = args.watch && ::isatty(STDOUT_FILENO) == 1 && args.output == "text";
  ExitCode code = ShowOnce(*directory, args, redraw);
  while (args.watch && !Interrupted() && code != ExitCode::kNotFound) {
    // A terminal is read by a person: a second is soon enough. A signal ends nanosleep.
    const timespec second{.tv_sec = 1, .tv_nsec = 0};
    ::nanosleep(&second, nullptr);
    if (!Interrupted()) code = ShowOnce(*directory, args, redraw);
  }
  return args.watch && Interrupted() ? ExitCode::kOk : code;
}

}  // namespace

Command StatusCommand() {
  auto args = std::make_shared<StatusArgs>();
  Command command{.name = "status",
                  .summary = "Show pools and nodes",
                  .example =
                      "kvctl status\n  kvctl status -w\n"
                      "  kvctl status -o json | jq .pools[0].ready",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options = {DirectoryOption(&args->directory),
                     OutputOption(&args->output),
                     {.names = "-w,--watch",
                      .target = &args->watch,
                      .help = "show it again every second until Ctrl-C",
                      .required = false,
                      .choices = {}}};
  return command;
}

}  // namespace kvfabric::cli
