#pragma once

// FabricDirectory: where everything of one local fabric lies. The operator owns api/, tls/,
// operator.json and kubeconfig; each agent owns its agents/NODE/state; kvctl owns the rest.
// docs/quickstart.md lists the files. A value; any thread.
//
//   tokens            `tenant token` lines, mode 0600
//   kvctl.json        nodes, zones, ports, arena: what `up` decided
//   pools/NAME.yaml   pools as they were applied
//   api/              the embedded Kubernetes API's objects
//   tls/              the operator's CA, the bundle agents start with, the admin certificate
//   kubeconfig        for kubectl and kvctl
//   operator.{pid,log,json}
//   agents/NODE/      agent.yaml, pid, log, state/ (agent.json, last maps), agent.sock

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/process.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric::cli {

// Loopback ports of one agent; 0 = not chosen yet. Kept over restarts.
struct AgentPorts {
  std::uint16_t grpc = 0, bulk = 0, http = 0;
  bool operator==(const AgentPorts&) const = default;
};

struct FabricNode {
  std::string name;
  std::string zone;  // empty = none
  AgentPorts ports;
  bool operator==(const FabricNode&) const = default;
};

// What `up` decided, kept in kvctl.json.
struct FabricSettings {
  std::uint64_t arena_bytes = 0;  // per node
  std::uint32_t zones = 0;        // 0 = no zone labels
  std::uint32_t next_node = 0;    // number of the next node made without a name
  std::vector<FabricNode> nodes;

  const FabricNode* Find(const std::string& name) const;
  FabricNode* Find(const std::string& name);
};

// What an agent tells in agent.json once all its ports are open.
struct AgentRun {
  ProcessId process;
  AgentPorts ports;
};

class FabricDirectory {
 public:
  // An empty path means ~/.kvfabric. The directory need not exist.
  static Result<FabricDirectory> At(const std::string& path);

  // Makes the directory (mode 0700); says so where it cannot be written.
  Status Make() const;
  // Held while one kvctl changes processes or settings; waits up to 30 s for another.
  Result<UniqueFd> Lock() const;

  // NOT_FOUND says how to start a fabric.
  Result<FabricSettings> LoadSettings() const;
  Status SaveSettings(const FabricSettings& settings) const;

  // Adds a fresh token for each tenant that has none; others stay. Answers all.
  Result<std::map<std::string, std::string>> EnsureTokens(
      const std::vector<std::string>& tenants) const;
  Result<std::string> TokenOf(const std::string& tenant) const;

  // NOT_FOUND before it listens and after a clean end; after a kill it is still there.
  Result<AgentRun> ReadAgentRun(const std::string& node) const;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path tokens() const { return root_ / "tokens"; }
  std::filesystem::path settings() const { return root_ / "kvctl.json"; }
  std::filesystem::path pools() const { return root_ / "pools"; }
  std::filesystem::path api() const { return root_ / "api"; }
  std::filesystem::path tls() const { return root_ / "tls"; }
  std::filesystem::path kubeconfig() const { return root_ / "kubeconfig"; }
  std::filesystem::path operator_json() const { return root_ / "operator.json"; }
  std::filesystem::path operator_pid() const { return root_ / "operator.pid"; }
  std::filesystem::path operator_log() const { return root_ / "operator.log"; }
  std::filesystem::path agent(const std::string& node) const { return root_ / "agents" / node; }
  std::filesystem::path agent_config(const std::string& node) const {
    return agent(node) / "agent.yaml";
  }
  std::filesystem::path agent_state(const std::string& node) const { return agent(node) / "state"; }
  std::filesystem::path agent_json(const std::string& node) const {
    return agent_state(node) / "agent.json";
  }
  std::filesystem::path agent_pid(const std::string& node) const { return agent(node) / "pid"; }
  std::filesystem::path agent_log(const std::string& node) const { return agent(node) / "log"; }
  // In the agent's directory, or, where that path is too long for a Unix socket (107 bytes), in
  // short_directory().
  std::filesystem::path agent_socket(const std::string& node) const;
  // A directory of ours under /tmp named for this fabric.
  std::filesystem::path short_directory() const;
  // Makes agents/NODE and its socket's directory.
  Status MakeAgentDirectories(const std::string& node) const;

 private:
  explicit FabricDirectory(std::filesystem::path root) : root_(std::move(root)) {}

  std::filesystem::path root_;  // absolute
};

// Tenants that every fabric has besides those its pools name.
inline constexpr const char* kDefaultTenant = "default";
inline constexpr const char* kAdminTenant = "admin";

}  // namespace kvfabric::cli
