// kvctl rm: drops the copies of keys at the holders that are known; best effort, as the fabric may
// forget any block anyway.

#include <cstdio>

#include "cli/data_client.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct RmArgs {
  DataOptions data;
  std::vector<std::string> keys;
};

ExitCode Run(const RmArgs& args) {
  const Result<Chain> keys = KeysOf(args.data, args.keys);
  if (!keys.ok()) return Fail(keys.status());
  const auto client = OpenDataClient(args.data);
  if (!client.ok()) return Fail(client.status());
  const std::uint32_t dropped = (*client)->Delete(*keys, 0, keys->size(), {}, args.data.budget());
  std::printf("removed %u of %u keys\n", dropped, keys->size());
  return dropped == keys->size() ? ExitCode::kOk : ExitCode::kNotFound;
}

}  // namespace

Command RmCommand() {
  auto args = std::make_shared<RmArgs>();
  Command command{.name = "rm",
                  .summary = "Drop the known copies of keys (exit code 4: not all were there)",
                  .example = "kvctl rm greeting farewell",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "keys",
                             .target = &args->keys,
                             .help = "1 to 512 bytes each",
                             .required = true,
                             .choices = {}});
  AddDataOptions(args->data, command);
  return command;
}

}  // namespace kvfabric::cli
