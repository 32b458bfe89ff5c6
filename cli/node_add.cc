// kvctl node add: starts the agent of a node that is down, or makes a new node.

#include <cstdio>

#include "cli/local_fabric.h"
#include "cli/verbs.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

struct AddArgs {
  std::string directory;
  std::string node;
};

Status Add(const FabricDirectory& directory, std::string& node, std::string& said) {
  KVF_ASSIGN_OR_RETURN(const UniqueFd lock, directory.Lock());
  KVF_ASSIGN_OR_RETURN(LocalFabric fabric, LocalFabric::Open(directory));
  if (node.empty() || fabric.settings().Find(node) == nullptr) {
    KVF_ASSIGN_OR_RETURN(node, fabric.AddNode(node));
  }
  KVF_RETURN_IF_ERROR(fabric.StartAgent(node, &said));
  const auto api = ConnectApi(directory);
  // Without an operator the agent serves its own node; kvctl up publishes it later.
  if (!api.ok()) return api.status().WithContext("node " + node + ": started, but not published");
  // Replaces its objects, so a drain that was asked for before is over.
  return fabric.Publish(**api, node);
}

ExitCode Run(AddArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  std::string said;
  const Status added = Add(*directory, args.node, said);
  if (!said.empty()) std::fprintf(stderr, "%s", said.c_str());
  if (!added.ok()) return Fail(added);
  std::printf("%s\n", args.node.c_str());
  return ExitCode::kOk;
}

}  // namespace

Command NodeAddCommand() {
  auto args = std::make_shared<AddArgs>();
  Command command{.name = "node add",
                  .summary = "Start a node's agent again, or add a new node",
                  .example =
                      "kvctl node add            # a new one; prints its name\n"
                      "  kvctl node add node-1     # start it again",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "node",
                             .target = &args->node,
                             .help = "its name (default: the next free one)",
                             .required = false,
                             .choices = {}});
  command.options.push_back(DirectoryOption(&args->directory));
  return command;
}

}  // namespace kvfabric::cli
