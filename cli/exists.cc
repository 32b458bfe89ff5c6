// kvctl exists: whether keys are there. Exit code 0: all of them; 4: at least one is not.

#include <cstdio>

#include "cli/data_client.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct ExistsArgs {
  DataOptions data;
  std::vector<std::string> keys;
};

ExitCode Run(const ExistsArgs& args) {
  const Result<Chain> keys = KeysOf(args.data, args.keys);
  if (!keys.ok()) return Fail(keys.status());
  const auto client = OpenDataClient(args.data);
  if (!client.ok()) return Fail(client.status());
  const LookupOutcome found = (*client)->Lookup(*keys, 0, keys->size(), {}, args.data.budget());
  if (found.miss == Miss::kNoAgent) return Fail(Unavailable("exists: " + NoAnswer(args.data)));
  bool all = true;
  for (std::size_t i = 0; i < args.keys.size(); ++i) {
    const bool yes = i < found.found.size() && found.found[i];
    std::printf("%s %s\n", yes ? "yes" : "no ", args.keys[i].c_str());
    all = all && yes;
  }
  return all ? ExitCode::kOk : ExitCode::kNotFound;
}

}  // namespace

Command ExistsCommand() {
  auto args = std::make_shared<ExistsArgs>();
  Command command{.name = "exists",
                  .summary = "Say which keys are there, on any node (exit code 4: not all)",
                  .example = "kvctl exists greeting farewell",
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
