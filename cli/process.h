#pragma once

// Processes that kvctl starts and ends: daemons of their own session that outlive it, known by pid
// and start time, so that a reused pid is never signalled. Any thread; StartDaemon forks and only
// uses what is safe after a fork in a process with threads.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace kvfabric::cli {

struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat

  bool operator==(const ProcessId&) const = default;
};

struct DaemonOptions {
  std::vector<std::string> argv;    // argv[0] is a path to the program
  std::filesystem::path log;        // stdout and stderr are appended to it
  std::filesystem::path directory;  // working directory
};

// Returns once the program runs; an exec that fails is told here.
Result<ProcessId> StartDaemon(const DaemonOptions& options);

// False for a zombie and for another process that got the pid since.
bool IsRunning(const ProcessId& process);
// Stopped by SIGSTOP.
bool IsStopped(const ProcessId& process);
// NOT_FOUND when it is not running.
Status SendSignal(const ProcessId& process, int signal);
// False when it still ran at the deadline.
bool WaitUntilGone(const ProcessId& process, std::chrono::milliseconds budget);

// A pid file: `PID START_TICKS\n`, replaced atomically. nullopt when it is absent or garbage.
Status WritePidFile(const std::filesystem::path& file, const ProcessId& process);
std::optional<ProcessId> ReadPidFile(const std::filesystem::path& file);

// Start time of a live process; nullopt when there is none, or only its zombie.
std::optional<std::uint64_t> StartTicks(pid_t pid);

// The program of our build that stands beside this executable, e.g. kvfabric-agent.
Result<std::filesystem::path> SiblingProgram(const std::string& name);

}  // namespace kvfabric::cli
