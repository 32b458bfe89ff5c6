// kvctl get: writes the block of a key to standard output or a file.

#include <cstdio>

#include "cli/data_client.h"
#include "cli/files.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct GetArgs {
  DataOptions data;
  std::string key;
  std::string file = "-";
};

ExitCode Run(const GetArgs& args) {
  const Result<Chain> keys = KeysOf(args.data, {args.key});
  if (!keys.ok()) return Fail(keys.status());
  const auto client = OpenDataClient(args.data);
  if (!client.ok()) return Fail(client.status());
  const GetOutcome got = (*client)->Get({}, *keys, 0, 1, {}, args.data.budget());
  if (got.blocks.empty() || !got.blocks[0]) {
    const ClientCounters counters = (*client)->counters();
    if (counters.missed_no_agent + counters.missed_deadline > 0)
      return Fail(Unavailable("get " + args.key + ": " + NoAnswer(args.data)));
    return Fail(NotFound("get " + args.key + ": not found: no node has it (any more)"));
  }
  const BlockView& view = *got.blocks[0];
  if (!view.Verify()) return Fail(NotFound("get " + args.key + ": went away while it was read"));
  const std::string_view text = AsText(view.bytes());
  if (args.file != "-") {
    const Status written = WriteFileAtomically(args.file, text, 0644);
    return written.ok() ? ExitCode::kOk : Fail(written);
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return Fail(Internal("get " + args.key + ": standard output is closed"));
  return ExitCode::kOk;
}

}  // namespace

Command GetCommand() {
  auto args = std::make_shared<GetArgs>();
  Command command{.name = "get",
                  .summary = "Read the block of a key, from whichever node has it",
                  .example = "kvctl get greeting\n  kvctl get greeting hello.bin --node node-1",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "key",
                             .target = &args->key,
                             .help = "1 to 512 bytes",
                             .required = true,
                             .choices = {}});
  command.options.push_back({.names = "file",
                             .target = &args->file,
                             .help = "where to write it; - is standard output",
                             .required = false,
                             .choices = {}});
  AddDataOptions(args->data, command);
  return command;
}

}  // namespace kvfabric::cli
