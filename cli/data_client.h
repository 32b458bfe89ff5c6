#pragma once

// What put, get, exists and rm share: a client of one pool for independent keys. Each verb opens
// one, uses it and ends.

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "client/client.h"
#include "common/status.h"

namespace kvfabric::cli {

struct DataOptions {
  std::string directory;
  std::string pool;  // empty = the only one
  std::string tenant = "default";
  std::string node;                      // empty = the first that runs
  std::vector<std::string> fingerprint;  // name=value
  bool hex = false;                      // keys are hexadecimal
  double timeout_s = 5;

  std::chrono::milliseconds budget() const {
    return std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
  }
};

void AddDataOptions(DataOptions& options, Command& command);

// For errors: what to do when no agent answered within the budget.
std::string NoAnswer(const DataOptions& options);

// Connected to the node asked for, or to the first that answers.
Result<std::unique_ptr<Client>> OpenDataClient(const DataOptions& options);
// Independent keys, as the client takes them.
Result<Chain> KeysOf(const DataOptions& options, const std::vector<std::string>& keys);

}  // namespace kvfabric::cli
