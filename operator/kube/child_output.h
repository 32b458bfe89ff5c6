#pragma once

// Running a program for what it prints.

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "common/status.h"

namespace kvfabric::kube {

struct ChildOutput {
  int exit_code = 0;  // 128 + signal when one ended it
  std::string out;
  std::string err;  // its last 1 KiB
};

struct ChildCommand {
  std::vector<std::string> argv;  // [0] is looked for in PATH unless it has a slash
  std::vector<std::string> env;   // NAME=value, added to ours or in its place
  std::chrono::milliseconds deadline{30'000};
  std::size_t max_out_bytes = std::size_t{1} << 20U;
  int stop_fd = -1;  // readable: end it now
};

// Runs it with stdin from /dev/null, in a process group of its own, and waits. At the deadline, at
// too much output or at `stop_fd` the whole group is killed: DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED,
// CANCELLED. NOT_FOUND when there is no such program. Any thread.
Result<ChildOutput> RunChild(const ChildCommand& command);

}  // namespace kvfabric::kube
