// kvctl: people's tool for a fabric, and the local mode's process starter.

#include "cli/parser.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "common/log.h"

int main(int argc, char** argv) {
  namespace cli = kvfabric::cli;
  kvfabric::InitLogging("kvctl", kvfabric::LogLevel::kError);
  cli::CatchInterrupts();
  const std::vector<cli::CommandGroup> groups = {
      {.name = "node",
       .summary = "List, add, drain and kill the nodes of a local fabric",
       .example = "kvctl node list\n  kvctl node kill node-1 && kvctl node add node-1"},
      {.name = "rebalance",
       .summary = "Look at slots that are on the move, and agree to moves that wait",
       .example = "kvctl rebalance status\n  kvctl rebalance approve"},
  };
  const std::vector<cli::Command> commands = {
      cli::UpCommand(),
      cli::DownCommand(),
      cli::StatusCommand(),
      cli::ReplayCommand(),
      cli::PutCommand(),
      cli::GetCommand(),
      cli::ExistsCommand(),
      cli::RmCommand(),
      cli::SlotsCommand(),
      cli::NodeListCommand(),
      cli::NodeAddCommand(),
      cli::NodeDrainCommand(),
      cli::NodeKillCommand(),
      cli::RebalanceStatusCommand(),
      cli::RebalanceApproveCommand(),
  };
  return static_cast<int>(cli::ParseAndRun(groups, commands, argc, argv));
}
