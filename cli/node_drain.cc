// kvctl node drain: asks the operator to move a node's slots and hottest blocks elsewhere.

#include <cstdio>

#include "cli/local_fabric.h"
#include "cli/verbs.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

struct DrainArgs {
  std::string directory;
  std::string node;
  bool undo = false;
};

ExitCode Run(const DrainArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<FabricSettings> settings = directory->LoadSettings();
  if (!settings.ok()) return Fail(settings.status());
  if (settings->Find(args.node) == nullptr)
    return Fail(NotFound("node " + args.node +
                         ": not in this fabric: kvctl node list shows those that are"));
  const auto api = ConnectApi(*directory);
  if (!api.ok()) return Fail(api.status());
  const Status asked = SetDrain(**api, args.node, !args.undo);
  if (!asked.ok()) return Fail(asked);
  if (args.undo) {
    std::printf("%s is to stay\n", args.node.c_str());
  } else {
    std::printf("%s is to be drained; kvctl status -w shows how far it is\n", args.node.c_str());
  }
  return ExitCode::kOk;
}

}  // namespace

Command NodeDrainCommand() {
  auto args = std::make_shared<DrainArgs>();
  Command command{.name = "node drain",
                  .summary = "Move a node's slots and hottest blocks to the others",
                  .example = "kvctl node drain node-1\n  kvctl node drain node-1 --undo",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "node",
                             .target = &args->node,
                             .help = "name of the node",
                             .required = true,
                             .choices = {}});
  command.options.push_back({.names = "--undo",
                             .target = &args->undo,
                             .help = "take it back: the node stays",
                             .required = false,
                             .choices = {}});
  command.options.push_back(DirectoryOption(&args->directory));
  return command;
}

}  // namespace kvfabric::cli
