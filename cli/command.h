#pragma once

// Command: one verb of kvctl, described as data: options bound to variables, help, an example and
// what to run. The verbs (cli/verbs.h) know nothing of the parser; cli/parser.cc is the only file
// that includes CLI11. Built and run on main's thread.

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/status.h"

namespace kvfabric::cli {

// What kvctl exits with, so that scripts need not read texts. Documented in docs/quickstart.md.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,        // the operation was tried and failed
  kUsage = 2,         // the command line is wrong
  kInvalid = 3,       // a file or argument was refused: a pool with faults
  kNotFound = 4,      // no such key, node, pool or fabric
  kNotRunning = 5,    // the operator or the agents do not answer
  kTimedOut = 6,      // still not there at the deadline
  kWrongBytes = 7,    // replay read bytes that nobody put
  kInterrupted = 130  // Ctrl-C
};

struct Option {
  using Target =
      std::variant<bool*, std::string*, std::uint64_t*, double*, std::vector<std::string>*>;
  std::string names;  // "-f,--file", or "trace" for a positional argument
  Target target;      // borrowed from the command's arguments; its value is the default
  std::string help;
  bool required = false;
  std::vector<std::string> choices;  // empty = any
};

struct Command {
  std::string name;  // "status", or "node kill" for a verb of a group
  std::string summary;
  std::string example;
  std::vector<Option> options;
  // Owns, by capture, what the options point to.
  std::function<ExitCode()> run;
};

// Says what went wrong on stderr and picks the exit code that goes with it.
ExitCode Fail(const Status& status);

}  // namespace kvfabric::cli
