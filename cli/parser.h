#pragma once

// Parses kvctl's command line against a list of commands and runs the one it names. Prints help
// and usage faults itself. Called once, from main.

#include <vector>

#include "cli/command.h"

namespace kvfabric::cli {

// `groups` gives the summary and an example of each first word that several commands share.
struct CommandGroup {
  std::string name;
  std::string summary;
  std::string example;
};

ExitCode ParseAndRun(const std::vector<CommandGroup>& groups, const std::vector<Command>& commands,
                     int argc, const char* const* argv);

}  // namespace kvfabric::cli
