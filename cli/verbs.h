#pragma once

// The verbs of kvctl, one file each, and the options that many of them share.

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace kvfabric::cli {

Command UpCommand();                // up.cc
Command DownCommand();              // down.cc
Command StatusCommand();            // status.cc
Command SlotsCommand();             // slots.cc
Command PutCommand();               // put.cc
Command GetCommand();               // get.cc
Command ExistsCommand();            // exists.cc
Command RmCommand();                // rm.cc
Command NodeListCommand();          // node_list.cc
Command NodeAddCommand();           // node_add.cc
Command NodeDrainCommand();         // node_drain.cc
Command NodeKillCommand();          // node_kill.cc
Command RebalanceStatusCommand();   // rebalance_status.cc
Command RebalanceApproveCommand();  // rebalance_approve.cc
Command ReplayCommand();            // replay.cc

Option DirectoryOption(std::string* directory);
Option OutputOption(std::string* output);  // text or json

}  // namespace kvfabric::cli
