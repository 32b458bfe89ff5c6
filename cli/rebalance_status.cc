// kvctl rebalance status: how far slots are from where they should be, pool by pool.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/fabric_view.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

struct RebalanceArgs {
  std::string directory;
  std::string output = "text";
};

void ShowProposal(const PoolView& pool) {
  const ProposalStatus& proposal = pool.status().rebalance.proposal;
  if (proposal.id.empty()) return;
  std::printf("\n%s proposes %s since %s: %llu slots, %s, about %llu s (%s)\n", pool.name.c_str(),
              proposal.id.c_str(), proposal.created_at.c_str(),
              static_cast<unsigned long long>(proposal.slots),
              FormatBytes(static_cast<double>(proposal.bytes)).c_str(),
              static_cast<unsigned long long>(proposal.eta_seconds), proposal.reason.c_str());
  if (proposal.approved) {
    std::printf("  approved: its moves are under way\n");
  } else {
    std::printf("  to let them be made: kvctl rebalance approve %s\n", proposal.id.c_str());
  }
}

Json ProposalJson(const ProposalStatus& proposal) {
  if (proposal.id.empty()) return nullptr;
  return {{"id", proposal.id},
          {"reason", proposal.reason},
          {"slots", proposal.slots},
          {"bytes", proposal.bytes},
          {"etaSeconds", proposal.eta_seconds},
          {"createdAt", proposal.created_at},
          {"approved", proposal.approved}};
}

void ShowText(const FabricView& view) {
  std::vector<std::vector<std::string>> rows = {
      {"POOL", "STATE", "MOVED", "REMAINING", "BYTES MOVED", "SHORT OF COPIES", "REASON"}};
  for (const PoolView& pool : view.pools) {
    const RebalanceStatus& rebalance = pool.status().rebalance;
    rows.push_back({pool.name, rebalance.state.empty() ? "-" : rebalance.state,
                    std::to_string(rebalance.slots_moved) + " slots",
                    std::to_string(rebalance.slots_remaining) + " slots",
                    FormatBytes(static_cast<double>(rebalance.bytes_moved)),
                    std::to_string(pool.status().slots.under_replicated), rebalance.reason});
  }
  std::printf("%s", FormatTable(rows).c_str());
  for (const PoolView& pool : view.pools) ShowProposal(pool);
}

void ShowJson(const FabricView& view) {
  Json json = Json::array();
  for (const PoolView& pool : view.pools) {
    json.push_back({{"pool", pool.name},
                    {"state", pool.status().rebalance.state},
                    {"reason", pool.status().rebalance.reason},
                    {"slotsMoved", pool.status().rebalance.slots_moved},
                    {"slotsRemaining", pool.status().rebalance.slots_remaining},
                    {"bytesMoved", pool.status().rebalance.bytes_moved},
                    {"proposal", ProposalJson(pool.status().rebalance.proposal)},
                    {"underReplicated", pool.status().slots.under_replicated}});
  }
  std::printf("%s\n", json.dump(2).c_str());
}

ExitCode Run(const RebalanceArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<FabricView> view = LoadView(*directory);
  if (!view.ok()) return Fail(view.status());
  if (view->from_files) std::fprintf(stderr, "kvctl: %s\n", view->why_files.c_str());
  if (args.output == "json") {
    ShowJson(*view);
  } else {
    ShowText(*view);
  }
  return view->from_files ? ExitCode::kNotRunning : ExitCode::kOk;
}

}  // namespace

Command RebalanceStatusCommand() {
  auto args = std::make_shared<RebalanceArgs>();
  Command command{.name = "rebalance status",
                  .summary = "Show slots on the move and blocks short of copies",
                  .example = "kvctl rebalance status",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options = {DirectoryOption(&args->directory), OutputOption(&args->output)};
  return command;
}

}  // namespace kvfabric::cli
