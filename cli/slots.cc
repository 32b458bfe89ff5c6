// kvctl slots: the shard map of a pool as ranges of slots, or the owners of one key's slot.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/fabric_view.h"
#include "cli/pool_files.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

struct SlotsArgs {
  std::string directory;
  std::string output = "text";
  std::string pool;
  std::string key;
};

struct Range {
  SlotIndex first = 0, last = 0;
  std::vector<std::string> owners;
};

std::vector<std::string> OwnerNames(const ShardMap& map, SlotIndex slot) {
  std::vector<std::string> names;
  for (const MemberIndex owner : map.Owners(slot)) {
    if (owner != kNoOwner) names.push_back(map.members[owner].node_name);
  }
  return names;
}

std::vector<Range> RangesOf(const ShardMap& map) {
  std::vector<Range> ranges;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    std::vector<std::string> owners = OwnerNames(map, slot);
    if (!ranges.empty() && ranges.back().owners == owners) {
      ranges.back().last = slot;
    } else {
      ranges.push_back({.first = slot, .last = slot, .owners = std::move(owners)});
    }
  }
  return ranges;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : " ").append(name);
  return text.empty() ? "nobody" : text;
}

ExitCode ShowKey(const SlotsArgs& args, const ShardMap& map) {
  const SlotIndex slot = SlotOfSingle(args.key, map.slot_count);
  const std::vector<std::string> owners = OwnerNames(map, slot);
  if (args.output == "json") {
    std::printf("%s\n", Json{{"slot", slot}, {"owners", owners}}.dump().c_str());
  } else {
    std::printf("slot %u: %s\n", slot, Joined(owners).c_str());
  }
  return ExitCode::kOk;
}

ExitCode ShowAll(const SlotsArgs& args, const ShardMap& map) {
  Json json = {{"epoch", map.epoch}, {"replicas", map.replicas}, {"ranges", Json::array()}};
  if (args.output != "json")
    std::printf("epoch %llu, %u slots, %u replicas; first owners first\n",
                static_cast<unsigned long long>(map.epoch), map.slot_count, map.replicas);
  for (const Range& range : RangesOf(map)) {
    if (args.output == "json") {
      json["ranges"].push_back(
          {{"first", range.first}, {"last", range.last}, {"owners", range.owners}});
    } else {
      std::printf("%6u-%-6u %s\n", range.first, range.last, Joined(range.owners).c_str());
    }
  }
  if (args.output == "json") std::printf("%s\n", json.dump(2).c_str());
  return ExitCode::kOk;
}

ExitCode Run(const SlotsArgs& args) {
  const Result<FabricDirectory> directory = FabricDirectory::At(args.directory);
  if (!directory.ok()) return Fail(directory.status());
  const Result<std::string> name = ChoosePool(*directory, args.pool);
  if (!name.ok()) return Fail(name.status());
  const Result<FabricView> view = LoadView(*directory);
  if (!view.ok()) return Fail(view.status());
  if (view->from_files) std::fprintf(stderr, "kvctl: %s\n", view->why_files.c_str());
  for (const PoolView& pool : view->pools) {
    if (pool.name != *name || !pool.map) continue;
    return args.key.empty() ? ShowAll(args, *pool.map) : ShowKey(args, *pool.map);
  }
  return Fail(NotFound("pool " + *name + ": has no shard map yet: see kvctl status"));
}

}  // namespace

Command SlotsCommand() {
  auto args = std::make_shared<SlotsArgs>();
  Command command{.name = "slots",
                  .summary = "Show which nodes own which slots, or a key's slot",
                  .example = "kvctl slots\n  kvctl slots --key '{user-7}:profile'",
                  .options = {},
                  .run = [args] { return Run(*args); }};
  command.options = {DirectoryOption(&args->directory),
                     OutputOption(&args->output),
                     {.names = "--pool",
                      .target = &args->pool,
                      .help = "NAMESPACE/NAME (default: the only one)",
                      .required = false,
                      .choices = {}},
                     {.names = "--key",
                      .target = &args->key,
                      .help = "show the slot of this independent key only",
                      .required = false,
                      .choices = {}}};
  return command;
}

}  // namespace kvfabric::cli
