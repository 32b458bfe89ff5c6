#pragma once

// LocalFabric: the operator and the agents of one fabric directory as processes of this machine.
// Starts and ends them, and keeps what a cluster would know of them (Node and Pod objects) in the
// embedded API. Nobody restarts what died: that is the point of trying it.
//
// One thread at a time; the caller holds FabricDirectory::Lock(). Errors say what to do next.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cli/fabric_directory.h"
#include "cli/process.h"
#include "common/status.h"

namespace kvfabric::kube {
class KubeClient;
}

namespace kvfabric::cli {

enum class ProcessState { kRunning, kStopped, kDead, kNeverStarted };
std::string_view ProcessStateName(ProcessState state);

// Of the process that a pid file names; kStopped is SIGSTOP's.
ProcessState StateOf(const std::filesystem::path& pid_file);

// The embedded API by the fabric's kubeconfig. UNAVAILABLE when the operator does not answer.
Result<std::unique_ptr<kube::KubeClient>> ConnectApi(const FabricDirectory& directory);

class LocalFabric {
 public:
  static Result<LocalFabric> Open(FabricDirectory directory);
  LocalFabric(FabricDirectory directory, FabricSettings settings)
      : directory_(std::move(directory)), settings_(std::move(settings)) {}

  const FabricDirectory& directory() const { return directory_; }
  const FabricSettings& settings() const { return settings_; }

  // OK when it runs already. Returns once its API answers.
  Status StartOperator();
  // Starts the agent of a node in settings() that does not run, on its old ports where it has any
  // and they are free; returns once its ports are open. `said` gets what a person should know.
  Status StartAgent(const std::string& node, std::string* said = nullptr);
  // Adds a node to the settings: `name`, or the next free one. Starts nothing.
  Result<std::string> AddNode(const std::string& name);
  Status RemoveNode(const std::string& name);
  // Writes the node's Node and Pod objects as they are now.
  Status Publish(kube::KubeClient& api, const std::string& node);

  Status KillAgent(const std::string& node) const;
  Status SignalAgent(const std::string& node, int signal) const;
  // SIGTERM, then SIGKILL after `grace`. OK when it does not run.
  static Status EndProcess(const std::filesystem::path& pid_file, std::chrono::milliseconds grace);

 private:
  Status WriteConfig(const FabricNode& node) const;
  Status LaunchAgent(const FabricNode& node) const;
  Status WaitForPorts(const std::string& node);

  FabricDirectory directory_;
  FabricSettings settings_;
};

// Marks or unmarks the Node to be drained.
Status SetDrain(kube::KubeClient& api, const std::string& node, bool drain);

// The last lines of a log, for errors.
std::string TailOf(const std::filesystem::path& log, std::size_t lines);

}  // namespace kvfabric::cli
