// kvctl down: ends every process of a fabric by pid and start time; its files stay, so that up
// starts it again as it was.

#include <cstdio>

#include "cli/local_fabric.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

struct DownArgs {
  std::string directory;
  bool purge = false;
};

constexpr std::chrono::seconds kGrace{10};

ExitCode Run(const DownArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<FabricSettings> settings = directory->LoadSettings();
  if (!settings.ok()) return Fail(settings.status());
  const Result<UniqueFd> lock = directory->Lock();
  if (!lock.ok()) return Fail(lock.status());
  Status first_fault;
  std::size_t ended = 0;
  const auto end = [&](const std::filesystem::path& pid_file) {
    const ProcessState state = StateOf(pid_file);
    if (state == ProcessState::kRunning || state == ProcessState::kStopped) ++ended;
    const Status status = LocalFabric::EndProcess(pid_file, kGrace);
    if (first_fault.ok()) first_fault = status;
  };
  // The operator first: it would see the agents leave and move slots for nothing.
  end(directory->operator_pid());
  for (const FabricNode& node : settings->nodes) end(directory->agent_pid(node.name));
  if (!first_fault.ok()) return Fail(first_fault);
  std::printf("ended %zu processes of %s\n", ended, directory->root().c_str());
  if (!args.purge) return ExitCode::kOk;
  std::error_code error;
  std::filesystem::remove_all(directory->short_directory(), error);
  std::filesystem::remove_all(directory->root(), error);
  if (error) return Fail(Internal(directory->root().string() + ": remove: " + error.message()));
  std::printf("removed %s\n", directory->root().c_str());
  return ExitCode::kOk;
}

}  // namespace

Command DownCommand() {
  auto args = std::make_shared<DownArgs>();
  Command command{.name = "down",
                  .summary = "End all processes of a local fabric",
                  .example = "kvctl down\n  kvctl down --purge    # its files too",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options.push_back(DirectoryOption(&args->directory));
  command.options.push_back({.names = "--purge",
                             .target = &args->purge,
                             .help = "remove the directory as well",
                             .required = false,
                             .choices = {}});
  return command;
}

}  // namespace kvfabric::cli
