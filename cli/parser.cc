#include "cli/parser.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

namespace kvfabric::cli {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

void AddOption(CLI::App& app, const Option& option) {
  CLI::Option* added = std::visit(
      Overloaded{[&](bool* flag) { return app.add_flag(option.names, *flag, option.help); },
                 [&](auto* value) {
                   auto* o = app.add_option(option.names, *value, option.help);
                   if (!value->empty()) o->capture_default_str();
                   return o;
                 },
                 [&](std::uint64_t* value) {
                   return app.add_option(option.names, *value, option.help)->capture_default_str();
                 },
                 [&](double* value) {
                   return app.add_option(option.names, *value, option.help)->capture_default_str();
                 }},
      option.target);
  if (option.required) added->required();
  if (!option.choices.empty()) added->check(CLI::IsMember(option.choices));
  if (std::holds_alternative<std::vector<std::string>*>(option.target) &&
      option.names.front() == '-') {
    added->take_all()->allow_extra_args(false);  // one value an occurrence
  }
}

}  // namespace

ExitCode ParseAndRun(const std::vector<CommandGroup>& groups, const std::vector<Command>& commands,
                     int argc, const char* const* argv) {
  CLI::App app("kvctl runs and inspects a kvfabric: a cache of KV blocks shared by nodes.",
               "kvctl");
  app.require_subcommand(1);
  app.set_version_flag("--version", KVF_VERSION);
  app.footer(
      "Example:\n  kvctl up -f examples/pool.yaml --agents 3 && kvctl status\n"
      "Each command's --help has an example of its own.");
  std::map<std::string, CLI::App*> parents;
  for (const CommandGroup& group : groups) {
    CLI::App* parent = app.add_subcommand(group.name, group.summary);
    parent->require_subcommand(1);
    parents[group.name] = parent;
  }
  const Command* chosen = nullptr;
  for (const Command& command : commands) {
    const auto space = command.name.find(' ');
    CLI::App* parent =
        space == std::string::npos ? &app : parents.at(command.name.substr(0, space));
    const std::string name =
        space == std::string::npos ? command.name : command.name.substr(space + 1);
    CLI::App* sub = parent->add_subcommand(name, command.summary);
    sub->footer("Example:\n  " + command.example);
    for (const Option& option : command.options) AddOption(*sub, option);
    sub->callback([&chosen, &command] { chosen = &command; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? ExitCode::kOk : ExitCode::kUsage;
  }
  return chosen == nullptr ? ExitCode::kUsage : chosen->run();
}

}  // namespace kvfabric::cli
