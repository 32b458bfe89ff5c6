// kvctl node list: names of the nodes, one a line, for scripts; status has the whole picture.

#include <cstdio>

#include "cli/local_fabric.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct ListArgs {
  std::string directory;
};

ExitCode Run(const ListArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<FabricSettings> settings = directory->LoadSettings();
  if (!settings.ok()) return Fail(settings.status());
  for (const FabricNode& node : settings->nodes) {
    std::printf("%s %s\n", node.name.c_str(),
                std::string(ProcessStateName(StateOf(directory->agent_pid(node.name)))).c_str());
  }
  return ExitCode::kOk;
}

}  // namespace

Command NodeListCommand() {
  auto args = std::make_shared<ListArgs>();
  Command command{.name = "node list",
                  .summary = "List the nodes and whether their agents run",
                  .example = "kvctl node list",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back(DirectoryOption(&args->directory));
  return command;
}

}  // namespace kvfabric::cli
