#pragma once

// AgentProcess: one agent, put together and taken apart in the right order. main.cc gives it a
// configuration and waits for a signal; tests run several in one process.
//
// Start: memory check, state directory, arena (prefaulted in the background), metrics and health
// over HTTP, Control over gRPC; then, once the memory is there, everything else; agent.json last.
// Owned by main; any thread, one at a time.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/service/agent_config.h"
#include "agent/tier/memory_check.h"
#include "common/status.h"

namespace kvfabric {

// Ports as opened; what agent.json tells.
struct AgentEndpoints {
  ListenAddress grpc, bulk, http;
  std::string socket_path;
};

// What an agent with an arena of that size takes at most, for the memory check: index of the blocks
// and directory included.
MemoryNeed MemoryNeedOf(std::uint64_t arena_bytes);

class AgentProcess {
 public:
  // Says why not: too little memory, a state directory in use, a port in use. `interrupted` is
  // asked again and again while memory is being prefaulted, and waits a few milliseconds itself;
  // CANCELLED when it says true.
  static Result<std::unique_ptr<AgentProcess>> Start(const AgentConfig& config,
                                                     const std::string& version,
                                                     const std::function<bool()>& interrupted);
  ~AgentProcess();                             // Stop
  AgentProcess(const AgentProcess&) = delete;  // one agent, one owner
  AgentProcess& operator=(const AgentProcess&) = delete;

  const AgentEndpoints& endpoints() const;
  // Stops serving, closes sessions, lets what is under way end, removes agent.json. Idempotent.
  void Stop();

 private:
  struct Parts;
  explicit AgentProcess(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace kvfabric
