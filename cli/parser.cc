#include "cli/parser.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

// `kvctl --dir DIR VERB ...` means the same as `kvctl VERB ... --dir DIR`: the option belongs to
// every verb, and people write it first.
std::vector<std::string> DirectoryLast(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  std::vector<std::string> moved;
  while (!words.empty()) {
    const std::string& first = words.front();
    const bool joined = first.rfind("--dir=", 0) == 0;
    if (!joined && first != "--dir" && first != "-d") break;
    const std::size_t count = joined ? 1 : std::min<std::size_t>(2, words.size());
    const auto end = words.begin() + static_cast<std::ptrdiff_t>(count);
    moved.assign(words.begin(), end);
    words.erase(words.begin(), end);
  }
  words.insert(words.end(), moved.begin(), moved.end());
  return words;
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
    parent->footer("Example:\n  " + group.example);
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
    std::vector<std::string> words = DirectoryLast(argc, argv);
    std::reverse(words.begin(), words.end());  // as CLI11 takes a list
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? ExitCode::kOk : ExitCode::kUsage;
  }
  return chosen == nullptr ? ExitCode::kUsage : chosen->run();
}

}  // namespace kvfabric::cli
