// kvctl node kill: SIGKILL to an agent, as a host that loses power would end it. Its objects stay;
// nobody restarts it. Needs no operator.

#include <cstdio>

#include "cli/local_fabric.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct KillArgs {
  std::string directory;
  std::string node;
};

ExitCode Run(const KillArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<LocalFabric> fabric = LocalFabric::Open(*directory);
  if (!fabric.ok()) return Fail(fabric.status());
  const Status killed = fabric->KillAgent(args.node);
  if (!killed.ok()) return Fail(killed);
  std::printf("killed the agent of %s; kvctl node add %s starts it again\n", args.node.c_str(),
              args.node.c_str());
  return ExitCode::kOk;
}

}  // namespace

Command NodeKillCommand() {
  auto args = std::make_shared<KillArgs>();
  Command command{.name = "node kill",
                  .summary = "End a node's agent with SIGKILL, as a power cut would",
                  .example = "kvctl node kill node-1",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "node",
                             .target = &args->node,
                             .help = "name of the node",
                             .required = true,
                             .choices = {}});
  command.options.push_back(DirectoryOption(&args->directory));
  return command;
}

}  // namespace kvfabric::cli
