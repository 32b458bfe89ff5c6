#pragma once

// AgentState: who this agent is. The state directory holds its UID and the last boot epoch under
// a lock, so that two agents can never be one identity and a restart is always noticed.
//
// Owned by main, opened before anything speaks to a peer; immutable afterwards, any thread. Files:
// `agent.lock` (flock, held for life), `agent` (text: uid and boot epoch, replaced atomically).
// Boot epoch = max(persisted + 1, unix time in us): grows over restarts even if the clock went
// back.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class AgentState {
 public:
  // Makes the directory if need be. ALREADY_EXISTS when another agent runs on it.
  static Result<std::unique_ptr<AgentState>> Open(std::filesystem::path directory,
                                                  const Clock& clock);
  AgentState(const AgentState&) = delete;  // one lock, one owner
  AgentState& operator=(const AgentState&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  const std::string& agent_uid() const { return agent_uid_; }
  std::uint64_t boot_epoch() const { return boot_epoch_; }

 private:
  AgentState(std::filesystem::path directory, UniqueFd lock, std::string agent_uid,
             std::uint64_t boot_epoch);

  const std::filesystem::path directory_;
  const UniqueFd lock_;
  const std::string agent_uid_;
  const std::uint64_t boot_epoch_;
};

}  // namespace kvfabric
