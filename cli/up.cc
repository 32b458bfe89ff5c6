// kvctl up: starts a local fabric from the YAML that kubectl apply takes, and waits until it is
// ready. Run again it starts what is down and applies what changed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/fabric_view.h"
#include "cli/files.h"
#include "cli/local_fabric.h"
#include "cli/node_objects.h"
#include "cli/pool_files.h"
#include "cli/pool_yaml.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "common/clock.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

struct UpArgs {
  std::string directory;
  std::string file;
  std::uint64_t agents = 0;
  std::uint64_t zones = 0;
  double timeout_s = 120;
};

constexpr std::uint64_t kDefaultAgents = 3;
constexpr std::uint64_t kMaxAgents = 64;

struct PoolSource {
  std::vector<PoolDocument> pools;
  std::string yaml;
};

// From -f; without it, what an earlier up applied stays.
Result<PoolSource> LoadPoolFile(const UpArgs& args) {
  PoolSource source;
  if (args.file.empty()) return source;
  KVF_ASSIGN_OR_RETURN(source.yaml, ReadFile(args.file == "-" ? "/dev/stdin" : args.file));
  KVF_ASSIGN_OR_RETURN(source.pools, ReadPools(source.yaml, args.file));
  return source;
}

Result<FabricSettings> DecideSettings(const UpArgs& args, const FabricDirectory& directory,
                                      const std::vector<PoolDocument>& pools) {
  Result<FabricSettings> old = directory.LoadSettings();
  if (!old.ok() && old.status().code() != StatusCode::kNotFound) return old.status();
  if (!old.ok() && args.file.empty())
    return NotFound(directory.root().string() +
                    ": no fabric here yet: name a pool with -f, e.g. -f examples/pool.yaml");
  if (args.agents > kMaxAgents)
    return InvalidArgument("--agents " + std::to_string(args.agents) + ": at most " +
                           std::to_string(kMaxAgents) + " on one machine");
  FabricSettings settings = old.ok() ? *old : FabricSettings{};
  KVF_ASSIGN_OR_RETURN(const std::vector<PoolDocument> all, WithAppliedPools(directory, pools));
  const std::uint64_t need = ArenaBytesFor(all);
  const bool running =
      std::any_of(settings.nodes.begin(), settings.nodes.end(), [&](const FabricNode& node) {
        return StateOf(directory.agent_pid(node.name)) == ProcessState::kRunning;
      });
  if (!pools.empty() && need > settings.arena_bytes) {
    if (running)
      return FailedPrecondition(
          args.file + ": needs " + FormatBytes(static_cast<double>(need)) + " a node" +
          (all.size() > pools.size() ? ", other pools included," : "") +
          " and running agents have " + FormatBytes(static_cast<double>(settings.arena_bytes)) +
          ", which is fixed at their start: run kvctl down, then this again");
    settings.arena_bytes = need;
  }
  if (!old.ok()) settings.zones = static_cast<std::uint32_t>(args.zones);
  return settings;
}

// What was asked for and will not happen, so that nobody waits for it.
void TellWhatStays(const UpArgs& args, const FabricSettings& settings, ProgressLine& line) {
  if (settings.nodes.empty()) return;  // the first start
  if (args.zones != 0 && args.zones != settings.zones)
    line.Say("--zones " + std::to_string(args.zones) + ": ignored, zones were given at the first " +
             "start (" + std::to_string(settings.zones) +
             "): kvctl down --purge, then up, spreads them anew");
  if (args.agents != 0 && args.agents < settings.nodes.size())
    line.Say("--agents " + std::to_string(args.agents) + ": there are " +
             std::to_string(settings.nodes.size()) +
             " nodes and up takes none away: kvctl node drain NAME empties one, kvctl down --purge "
             "starts over");
}

// Starts what does not run, and ends it again if the rest cannot be started.
class Starter {
 public:
  Starter(LocalFabric& fabric, ProgressLine& line) : fabric_(fabric), line_(line) {}

  Status StartAll() {
    const Status started = Start();
    if (!started.ok()) EndAll();
    return started;
  }
  // Ends what this started, newest first, whatever signals come meanwhile.
  void EndAll() {
    const InterruptHold hold;
    line_.Show(-1, "ending what was started");
    while (!started_.empty()) {
      static_cast<void>(LocalFabric::EndProcess(started_.back(), std::chrono::seconds(5)));
      started_.pop_back();
    }
  }

 private:
  Status Start() {
    line_.Show(-1, "starting the operator");
    Note(fabric_.directory().operator_pid());
    KVF_RETURN_IF_ERROR(fabric_.StartOperator());
    const std::size_t count = fabric_.settings().nodes.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (Interrupted()) return Cancelled("up: interrupted");
      const std::string node = fabric_.settings().nodes[i].name;
      line_.Show(static_cast<double>(i) / static_cast<double>(count), "starting " + node);
      Note(fabric_.directory().agent_pid(node));
      std::string said;
      KVF_RETURN_IF_ERROR(fabric_.StartAgent(node, &said));
      if (!said.empty()) line_.Say(node + ": " + said.substr(0, said.find('\n')));
    }
    return Status::Ok();
  }
  void Note(const std::filesystem::path& pid_file) {
    if (StateOf(pid_file) != ProcessState::kRunning) started_.push_back(pid_file);
  }

  LocalFabric& fabric_;
  ProgressLine& line_;
  std::vector<std::filesystem::path> started_;
};

// A fault that waiting does not cure.
Status Refusal(const PoolView& pool) {
  if (pool.condition("ConfigValid") != kube::ConditionStatus::kFalse) return Status::Ok();
  const kube::Condition* condition = kube::FindCondition(pool.status().conditions, "ConfigValid");
  return InvalidArgument("pool " + pool.name + ": ConfigValid=False: " + condition->reason + ": " +
                         condition->message);
}

std::string WaitingFor(const PoolView& pool) {
  std::string text = "pool " + pool.name + ": " + std::to_string(pool.status().members.ready) +
                     "/" + std::to_string(pool.status().members.desired) + " members";
  const kube::Condition* ready = kube::FindCondition(pool.status().conditions, "Ready");
  if (ready != nullptr && !ready->message.empty()) text += ": " + ready->message;
  return text;
}

// Ready is the operator's word for this generation; members must be all of ours too, as it may not
// have seen the last ones yet.
bool IsUp(const PoolView& pool, std::size_t nodes) {
  return pool.ready() && pool.status().members.ready >= nodes && pool.map.has_value();
}

Status WaitUntilReady(kube::KubeClient& api, std::size_t nodes, double timeout_s,
                      ProgressLine& line) {
  const Deadline deadline = Deadline::After(
      Clock::System(), std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000)));
  for (;;) {
    KVF_ASSIGN_OR_RETURN(const std::vector<PoolView> pools, LoadPools(api));
    const PoolView* waiting = nullptr;
    for (const PoolView& pool : pools) {
      KVF_RETURN_IF_ERROR(Refusal(pool));
      if (!IsUp(pool, nodes)) waiting = &pool;
    }
    if (waiting == nullptr) return Status::Ok();
    line.Show(-1, WaitingFor(*waiting));
    if (Interrupted()) return Cancelled("up: interrupted");
    if (deadline.Passed(Clock::System()))
      return DeadlineExceeded(WaitingFor(*waiting) + " (after " + FormatNumber(timeout_s, 0) +
                              " s; it runs on: see kvctl status)");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the API has no watch yet
  }
}

// With all processes running: tells the operator of nodes and pools, and waits.
Status Publish(const UpArgs& args, LocalFabric& fabric, const PoolSource& source,
               ProgressLine& line) {
  const FabricDirectory& directory = fabric.directory();
  KVF_ASSIGN_OR_RETURN(const auto api, ConnectApi(directory));
  for (const FabricNode& node : fabric.settings().nodes)
    KVF_RETURN_IF_ERROR(fabric.Publish(*api, node.name));
  for (const PoolDocument& pool : source.pools) {
    KVF_RETURN_IF_ERROR(
        ApplyObject(*api, kube::Kind::kPool, pool.json).WithContext("pool " + pool.name));
    KVF_RETURN_IF_ERROR(SavePoolFile(directory, pool.name, source.yaml));
  }
  return WaitUntilReady(*api, fabric.settings().nodes.size(), args.timeout_s, line);
}

Status BringUp(const UpArgs& args, const FabricDirectory& directory, const PoolSource& source,
               ProgressLine& line) {
  KVF_ASSIGN_OR_RETURN(const FabricSettings settings,
                       DecideSettings(args, directory, source.pools));
  TellWhatStays(args, settings, line);
  KVF_RETURN_IF_ERROR(directory.Make());
  KVF_ASSIGN_OR_RETURN(const UniqueFd lock, directory.Lock());
  KVF_RETURN_IF_ERROR(directory.SaveSettings(settings));
  std::vector<std::string> tenants = {kDefaultTenant, kAdminTenant};
  for (const PoolDocument& pool : source.pools)
    tenants.insert(tenants.end(), pool.tenants.begin(), pool.tenants.end());
  KVF_RETURN_IF_ERROR(directory.EnsureTokens(tenants).status());
  LocalFabric fabric(directory, settings);
  std::uint64_t wanted = args.agents;
  if (wanted == 0) wanted = settings.nodes.empty() ? kDefaultAgents : settings.nodes.size();
  while (fabric.settings().nodes.size() < wanted) KVF_RETURN_IF_ERROR(fabric.AddNode("").status());
  Starter starter(fabric, line);
  KVF_RETURN_IF_ERROR(starter.StartAll());
  const Status ready = Publish(args, fabric, source, line);
  if (!Interrupted()) return ready;
  starter.EndAll();
  return Cancelled("up: interrupted; what it had started is ended again");
}

void Tell(const FabricDirectory& directory) {
  const Result<FabricView> view = LoadView(directory);
  if (!view.ok()) return;
  for (const PoolView& pool : view->pools) {
    std::printf("pool %s is ready: %u members, epoch %llu\n", pool.name.c_str(),
                pool.status().members.ready,
                static_cast<unsigned long long>(pool.map ? pool.map->epoch : 0));
    for (const std::string& text : Simplifications(pool.pool.spec))
      std::printf("  note: %s\n", text.c_str());
  }
  for (const NodeView& node : view->nodes) {
    std::printf("%s: socket %s, grpc 127.0.0.1:%u, http://127.0.0.1:%u/metrics\n",
                node.node.name.c_str(), directory.agent_socket(node.node.name).c_str(),
                static_cast<unsigned>(node.node.ports.grpc),
                static_cast<unsigned>(node.node.ports.http));
  }
  std::printf("files and logs: %s\nkubectl: --kubeconfig %s\n", directory.root().c_str(),
              directory.kubeconfig().c_str());
}

ExitCode Run(const UpArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<PoolSource> source = LoadPoolFile(args);
  if (!source.ok()) return Fail(source.status());
  ProgressLine line;
  const Status up = BringUp(args, *directory, *source, line);
  line.Clear();
  if (!up.ok()) return Fail(up);
  Tell(*directory);
  return ExitCode::kOk;
}

}  // namespace

Command UpCommand() {
  auto args = std::make_shared<UpArgs>();
  Command command{.name = "up",
                  .summary = "Start a fabric of local processes, or what of it is down",
                  .example =
                      "kvctl up -f examples/pool.yaml --agents 3 --zones 3\n"
                      "  kvctl up        # start again what an earlier up made",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  const auto add = [&](const char* names, Option::Target target, const char* help) {
    command.options.push_back(
        {.names = names, .target = target, .help = help, .required = false, .choices = {}});
  };
  command.options.push_back(DirectoryOption(&args->directory));
  add("-f,--file", &args->file, "KVCachePool YAML, as kubectl apply takes it; - is standard input");
  add("--agents", &args->agents, "nodes there are to be (default: as they are, at first 3)");
  add("--zones", &args->zones, "spread nodes over so many zones (first start only; 0 = no zones)");
  add("--timeout", &args->timeout_s, "seconds to wait until the pools are ready");
  return command;
}

}  // namespace kvfabric::cli
