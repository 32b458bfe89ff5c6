#include "cli/local_fabric.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "cli/files.h"
#include "cli/node_objects.h"
#include "cli/terminal.h"
#include "common/clock.h"
#include "common/unique_fd.h"
#include "operator/kube/http_kube.h"
#include "operator/kube/kubeconfig.h"
#include "operator/specs/cluster_objects.h"

namespace kvfabric::cli {
namespace {

constexpr std::chrono::seconds kStartBudget{60};
constexpr std::chrono::milliseconds kPollEvery{20};
constexpr std::chrono::seconds kConnectBudget{2};
constexpr std::chrono::seconds kCallBudget{10};  // a person waits

// Polls `ready` until it is true, the process is gone, or the budget is over.
template <typename Ready>
Status WaitForStart(const std::string& what, const std::filesystem::path& pid_file,
                    const std::filesystem::path& log, const Ready& ready) {
  const Deadline deadline = Deadline::After(Clock::System(), kStartBudget);
  for (;;) {
    if (ready()) return Status::Ok();
    if (StateOf(pid_file) == ProcessState::kDead)
      return FailedPrecondition(what + ": ended at start; its log (" + log.string() + ") says:\n" +
                                TailOf(log, 8));
    if (Interrupted())
      return Cancelled(what + ": interrupted while it started; kvctl status shows what runs");
    if (deadline.Passed(Clock::System()))
      return DeadlineExceeded(what + ": not up after 60 s; its log (" + log.string() + ") says:\n" +
                              TailOf(log, 8));
    std::this_thread::sleep_for(kPollEvery);  // the start of another program has no event for us
  }
}

bool PortIsFree(std::uint16_t port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
         ::listen(socket.get(), 1) == 0;
}

void DropTakenPort(std::uint16_t& port, std::string* said) {
  if (port == 0 || PortIsFree(port)) return;
  if (said != nullptr)
    said->append("port ").append(std::to_string(port)).append(" is in use: taking another\n");
  port = 0;
}

std::string AgentYaml(const FabricDirectory& directory, const FabricSettings& settings,
                      const FabricNode& node) {
  const auto listen = [](std::uint16_t port) { return "127.0.0.1:" + std::to_string(port) + "\n"; };
  // JSON strings are YAML strings too, whatever the path holds.
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + "\"\n";
  };
  std::string yaml = "# Written by kvctl; docs/config-agent.md lists the fields.\n";
  yaml += "nodeName: " + quoted(node.name);
  if (!node.zone.empty()) yaml += "zone: " + quoted(node.zone);
  yaml += "stateDir: " + quoted(directory.agent_state(node.name).string());
  yaml += "socketPath: " + quoted(directory.agent_socket(node.name).string());
  yaml += "tokensFile: " + quoted(directory.tokens().string());
  yaml += "tls:\n  bootstrapDir: " + quoted(directory.tls().string());
  yaml += "listen:\n  grpc: " + listen(node.ports.grpc) + "  bulk: " + listen(node.ports.bulk) +
          "  http: " + listen(node.ports.http);
  yaml += "dram:\n  arenaBytes: " + std::to_string(settings.arena_bytes) + "\n";
  return yaml;
}

}  // namespace

std::string_view ProcessStateName(ProcessState state) {
  switch (state) {
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kStopped:
      return "stopped";
    case ProcessState::kDead:
      return "dead";
    case ProcessState::kNeverStarted:
      return "not started";
  }
  return "";
}

ProcessState StateOf(const std::filesystem::path& pid_file) {
  const auto process = ReadPidFile(pid_file);
  if (!process) return ProcessState::kNeverStarted;
  if (!IsRunning(*process)) return ProcessState::kDead;
  return IsStopped(*process) ? ProcessState::kStopped : ProcessState::kRunning;
}

std::string TailOf(const std::filesystem::path& log, std::size_t lines) {
  std::ifstream file(log);
  std::vector<std::string> tail;
  for (std::string line; std::getline(file, line);) {
    tail.push_back("  " + line);
    if (tail.size() > lines) tail.erase(tail.begin());
  }
  std::string text;
  for (const std::string& line : tail) text.append(text.empty() ? "" : "\n").append(line);
  return text.empty() ? "  (nothing)" : text;
}

Result<std::unique_ptr<kube::KubeClient>> ConnectApi(const FabricDirectory& directory) {
  const Result<std::string> there = ReadFile(directory.kubeconfig());
  if (!there.ok())
    return Unavailable("operator: no " + directory.kubeconfig().string() +
                       ": start it with kvctl up --dir " + directory.root().string());
  kube::HttpKube::Options options;
  KVF_ASSIGN_OR_RETURN(options.target, kube::LoadKubeconfig({directory.kubeconfig()}));
  options.user_agent = "kvctl/" KVF_VERSION;
  options.connect_timeout = kConnectBudget;
  options.call_timeout = kCallBudget;
  KVF_ASSIGN_OR_RETURN(std::unique_ptr<kube::HttpKube> api,
                       kube::HttpKube::Create(std::move(options)));
  if (const Status answers = api->Ping(); !answers.ok())
    return Unavailable("operator: does not answer (" + answers.message() +
                       "): start it again with kvctl up --dir " + directory.root().string());
  return std::unique_ptr<kube::KubeClient>(std::move(api));
}

Result<LocalFabric> LocalFabric::Open(FabricDirectory directory) {
  KVF_ASSIGN_OR_RETURN(FabricSettings settings, directory.LoadSettings());
  return LocalFabric(std::move(directory), std::move(settings));
}

Status LocalFabric::StartOperator() {
  if (StateOf(directory_.operator_pid()) != ProcessState::kRunning) {
    KVF_ASSIGN_OR_RETURN(const auto program, SiblingProgram("kvfabric-operator"));
    KVF_ASSIGN_OR_RETURN(
        const ProcessId process,
        StartDaemon({.argv = {program.string(), "--state-dir", directory_.root().string()},
                     .log = directory_.operator_log(),
                     .directory = directory_.root()}));
    KVF_RETURN_IF_ERROR(WritePidFile(directory_.operator_pid(), process));
  }
  return WaitForStart("operator", directory_.operator_pid(), directory_.operator_log(),
                      [&] { return ConnectApi(directory_).ok(); });
}

Result<std::string> LocalFabric::AddNode(const std::string& name) {
  FabricNode node;
  const std::uint32_t number = settings_.next_node++;
  node.name = name.empty() ? "node-" + std::to_string(number) : name;
  if (!kube::IsDnsSubdomain(node.name) || node.name.size() > 200)
    return InvalidArgument("node " + node.name +
                           ": a name is at most 200 of a-z, 0-9, `-` and `.`: write e.g. node-4");
  if (settings_.Find(node.name) != nullptr)
    return AlreadyExists("node " + node.name + ": is there already");
  if (settings_.zones > 0) node.zone = "zone-" + std::to_string(number % settings_.zones);
  settings_.nodes.push_back(node);
  KVF_RETURN_IF_ERROR(directory_.SaveSettings(settings_));
  return node.name;
}

Status LocalFabric::RemoveNode(const std::string& name) {
  std::erase_if(settings_.nodes, [&](const FabricNode& node) { return node.name == name; });
  return directory_.SaveSettings(settings_);
}

Status LocalFabric::WriteConfig(const FabricNode& node) const {
  return WriteFileAtomically(directory_.agent_config(node.name),
                             AgentYaml(directory_, settings_, node), 0600);
}

Status LocalFabric::LaunchAgent(const FabricNode& node) const {
  KVF_RETURN_IF_ERROR(directory_.MakeAgentDirectories(node.name));
  KVF_RETURN_IF_ERROR(WriteConfig(node));
  KVF_ASSIGN_OR_RETURN(const auto program, SiblingProgram("kvfabric-agent"));
  KVF_ASSIGN_OR_RETURN(const ProcessId process,
                       StartDaemon({.argv = {program.string(), "--config",
                                             directory_.agent_config(node.name).string()},
                                    .log = directory_.agent_log(node.name),
                                    .directory = directory_.agent(node.name)}));
  return WritePidFile(directory_.agent_pid(node.name), process);
}

Status LocalFabric::WaitForPorts(const std::string& node) {
  const auto process = ReadPidFile(directory_.agent_pid(node));
  AgentPorts ports;
  KVF_RETURN_IF_ERROR(
      WaitForStart("agent " + node, directory_.agent_pid(node), directory_.agent_log(node), [&] {
        const Result<AgentRun> run = directory_.ReadAgentRun(node);
        if (!run.ok() || !process || run->process != *process) return false;
        ports = run->ports;
        return true;
      }));
  FabricNode* entry = settings_.Find(node);
  if (entry->ports == ports) return Status::Ok();
  entry->ports = ports;
  KVF_RETURN_IF_ERROR(WriteConfig(*entry));  // whoever starts it by hand gets the same ports
  return directory_.SaveSettings(settings_);
}

Status LocalFabric::StartAgent(const std::string& node, std::string* said) {
  FabricNode* entry = settings_.Find(node);
  if (entry == nullptr)
    return NotFound("node " + node + ": not in this fabric: kvctl node list shows those that are");
  const ProcessState state = StateOf(directory_.agent_pid(node));
  if (state == ProcessState::kStopped)
    return FailedPrecondition("node " + node + ": its agent is stopped (SIGSTOP): send it SIGCONT");
  if (state != ProcessState::kRunning) {
    DropTakenPort(entry->ports.grpc, said);
    DropTakenPort(entry->ports.bulk, said);
    DropTakenPort(entry->ports.http, said);
    KVF_RETURN_IF_ERROR(LaunchAgent(*entry));
  }
  return WaitForPorts(node);
}

Status LocalFabric::Publish(kube::KubeClient& api, const std::string& node) {
  const FabricNode* entry = settings_.Find(node);
  if (entry == nullptr) return NotFound("node " + node + ": not in this fabric");
  KVF_RETURN_IF_ERROR(ApplyObject(api, kube::Kind::kNode, NodeJson(*entry)));
  return ApplyObject(api, kube::Kind::kPod, PodJson(*entry));
}

Status LocalFabric::SignalAgent(const std::string& node, int signal) const {
  const auto process = ReadPidFile(directory_.agent_pid(node));
  if (settings_.Find(node) == nullptr || !process)
    return NotFound("node " + node + ": not in this fabric: kvctl node list shows those that are");
  return SendSignal(*process, signal).WithContext("node " + node);
}

Status LocalFabric::KillAgent(const std::string& node) const {
  KVF_RETURN_IF_ERROR(SignalAgent(node, SIGKILL));
  const auto process = ReadPidFile(directory_.agent_pid(node));
  if (process && !WaitUntilGone(*process, std::chrono::seconds(10)))
    return DeadlineExceeded("node " + node + ": still there 10 s after SIGKILL");
  return Status::Ok();
}

Status LocalFabric::EndProcess(const std::filesystem::path& pid_file,
                               std::chrono::milliseconds grace) {
  const auto process = ReadPidFile(pid_file);
  if (process && IsRunning(*process)) {
    // A process that vanishes in between is what we want.
    static_cast<void>(SendSignal(*process, SIGTERM));
    static_cast<void>(SendSignal(*process, SIGCONT));  // one that is stopped cannot end
    if (!WaitUntilGone(*process, grace)) {
      static_cast<void>(SendSignal(*process, SIGKILL));
      if (!WaitUntilGone(*process, std::chrono::seconds(10)))
        return DeadlineExceeded(pid_file.string() + ": process " + std::to_string(process->pid) +
                                " is still there after SIGKILL");
    }
  }
  std::error_code ignored;
  std::filesystem::remove(pid_file, ignored);
  return Status::Ok();
}

Status SetDrain(kube::KubeClient& api, const std::string& node, bool drain) {
  return SetAnnotation(api, kube::Kind::kNode, {.ns = "", .name = node}, kDrainAnnotation,
                       drain ? "true" : "");
}

}  // namespace kvfabric::cli
