// kvctl rebalance approve: lets the moves be made that a pool with rebalance.mode Propose shows.

#include <cstdio>

#include "cli/fabric_view.h"
#include "cli/node_objects.h"
#include "cli/proposals.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

struct ApproveArgs {
  std::string directory;
  std::string id;
};

ExitCode Run(const ApproveArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const auto api = ConnectApi(*directory);
  if (!api.ok()) return Fail(api.status());
  const Result<std::vector<PoolView>> pools = LoadPools(**api);
  if (!pools.ok()) return Fail(pools.status());
  const Result<const PoolView*> found = FindProposal(*pools, args.id);
  if (!found.ok()) return Fail(found.status());
  const PoolView& pool = **found;
  const ProposalStatus& proposal = pool.status().rebalance.proposal;
  // For exactly this proposal: if another has taken its place meanwhile, nothing happens.
  const Status written =
      SetAnnotation(**api, kube::Kind::kPool, pool.pool.meta.name, kApproveAnnotation, proposal.id);
  if (!written.ok()) return Fail(written);
  std::printf("%s of %s is approved: %llu slots, %s, about %llu s (%s)\n", proposal.id.c_str(),
              pool.name.c_str(), static_cast<unsigned long long>(proposal.slots),
              FormatBytes(static_cast<double>(proposal.bytes)).c_str(),
              static_cast<unsigned long long>(proposal.eta_seconds), proposal.reason.c_str());
  return ExitCode::kOk;
}

}  // namespace

Command RebalanceApproveCommand() {
  auto args = std::make_shared<ApproveArgs>();
  Command command{.name = "rebalance approve",
                  .summary = "Let the moves be made that a pool proposes",
                  .example = "kvctl rebalance status\n  kvctl rebalance approve 3f9a1c-77b02e",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "id",
                             .target = &args->id,
                             .help = "of the proposal (default: the only one that waits)",
                             .required = false,
                             .choices = {}});
  command.options.push_back(DirectoryOption(&args->directory));
  return command;
}

}  // namespace kvfabric::cli
