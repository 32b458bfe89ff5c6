// kvctl put: stores one block under a key.

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cli/data_client.h"
#include "cli/fabric_directory.h"
#include "cli/files.h"
#include "cli/pool_yaml.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 30U;

struct PutArgs {
  DataOptions data;
  std::string key;
  std::string file = "-";
};

// The agent says no more than that it failed; this is nearly always why.
Status Refused(const PutArgs& args, std::size_t bytes) {
  std::string text = "put " + args.key + ": the agent refused it";
  const auto directory = FabricDirectory::At(args.data.directory);
  const auto settings =
      directory.ok() ? directory->LoadSettings() : Result<FabricSettings>(directory.status());
  const std::uint64_t limit =
      settings.ok() ? LargestBlockBytes(settings->arena_bytes) : kMaxBlockBytes;
  if (bytes > limit) {
    return InvalidArgument(text + ": a block of " + FormatBytes(static_cast<double>(bytes)) +
                           " is larger than " + FormatBytes(static_cast<double>(limit)) +
                           ", the smaller of 64 MiB and 1/16 of the node's memory: cut it, or give "
                           "the pool a larger capacityPerNode");
  }
  return Internal(text +
                  ": it is larger than the pool's capacityPerNode, or its log, "
                  "agents/NODE/log in the fabric's directory, says why");
}

ExitCode Tell(const PutArgs& args, PutResult status, unsigned copies, std::size_t bytes) {
  switch (status) {
    case PutResult::kOk:
      std::printf("stored %s (%zu bytes, %u %s)\n", args.key.c_str(), bytes, copies,
                  copies == 1 ? "copy" : "copies");
      return ExitCode::kOk;
    case PutResult::kAlreadyExists:
      std::printf("%s is there already: the first writer won\n", args.key.c_str());
      return ExitCode::kOk;
    case PutResult::kNoSpace:
      return Fail(ResourceExhausted("put " + args.key +
                                    ": no space: all blocks are in use, or the quota is full: "
                                    "try again, or give the pool a larger capacityPerNode"));
    case PutResult::kDropped:
      return Fail(Unavailable("put " + args.key + ": dropped: " + NoAnswer(args.data)));
    case PutResult::kChecksumMismatch:
      return Fail(DataLoss("put " + args.key + ": bytes changed on the way: put it again"));
    case PutResult::kFailed:
      break;
  }
  return Fail(Refused(args, bytes));
}

ExitCode Run(const PutArgs& args) {
  const Result<std::string> bytes =
      ReadFile(args.file == "-" ? "/dev/stdin" : args.file, kMaxBlockBytes);
  if (!bytes.ok()) return Fail(bytes.status());
  if (bytes->empty()) return Fail(InvalidArgument("put: a block has at least one byte"));
  const Result<Chain> keys = KeysOf(args.data, {args.key});
  if (!keys.ok()) return Fail(keys.status());
  const auto client = OpenDataClient(args.data);
  if (!client.ok()) return Fail(client.status());
  const PutBlock block{.bytes = AsBytes(*bytes), .metadata = {}};
  const PutOutcome put = (*client)->Put(*keys, 0, {&block, 1}, {}, args.data.budget());
  if (put.status.empty()) return Fail(Unavailable("put: " + NoAnswer(args.data)));
  return Tell(args, put.status[0], put.copies.empty() ? 0U : put.copies[0], bytes->size());
}

}  // namespace

Command PutCommand() {
  auto args = std::make_shared<PutArgs>();
  Command command{.name = "put",
                  .summary = "Store a block under a key",
                  .example = "kvctl put greeting hello.bin\n  echo hello | kvctl put greeting",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back({.names = "key",
                             .target = &args->key,
                             .help = "1 to 512 bytes",
                             .required = true,
                             .choices = {}});
  command.options.push_back({.names = "file",
                             .target = &args->file,
                             .help = "its bytes; - is standard input",
                             .required = false,
                             .choices = {}});
  AddDataOptions(args->data, command);
  return command;
}

}  // namespace kvfabric::cli
