// kvf-bench-placement: balance, movement and speed of the shard map planner, and how evenly the
// directory of real request traces falls on the first owners. StickyQuota is what agents get; a
// ring with bounded loads and rendezvous hashing are measured beside it on the same pools.
//
// Movement is counted in byte entries over the fewest any plan could move to the same exact
// shares. Times are CPU time of the planning thread, which does nothing but plan: on an idle
// machine that is the time a plan takes, and on a busy one it does not count the others.

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_report.h"
#include "bench/rendezvous_hash.h"
#include "placement/consistent_hash.h"
#include "placement/directory_load.h"
#include "placement/sticky_quota.h"
#include "trace/trace_directory.h"
#include "trace/trace_reader.h"

namespace kvfabric {
namespace {

struct BenchOptions {
  bool long_form = false;
  std::string json_file;
};

constexpr std::array<const char*, 3> kTraces = {"mooncake_conversation_trace.jsonl",
                                                "mooncake_synthetic_trace.jsonl",
                                                "agentic_merged_1024.jsonl.gz"};
constexpr std::array<std::size_t, 3> kDirectoryNodes = {3, 16, 128};

// What a plan has to meet, printed beside the figures; e2e/bench_bars judges by the same.
constexpr double kBalanceBar = 1.001;
constexpr double kMoveBarR1 = 1.05;
constexpr double kMoveBar = 1.3;
constexpr double kPlanMsBar = 50;
constexpr std::array<double, 3> kDirectoryBars = {1.05, 1.2, 1.6};

struct Contender {
  const char* name;
  std::unique_ptr<Planner> planner;
};

std::vector<Contender> Contenders() {
  std::vector<Contender> contenders;
  contenders.push_back({"sticky", std::make_unique<StickyQuota>()});
  contenders.push_back({"ring", std::make_unique<ConsistentHash>()});
  contenders.push_back({"hrw", std::make_unique<RendezvousHash>()});
  return contenders;
}

struct PoolShape {
  std::uint32_t slot_count = kRedisSlots;
  std::size_t nodes = 128;
  std::uint32_t replicas = 1;
  std::size_t zones = 3;
};

PlanMember MakeMember(std::size_t number, std::size_t zones) {
  PlanMember wanted;
  std::string digits = std::to_string(number);
  digits.insert(0, 4 - std::min<std::size_t>(4, digits.size()), '0');
  wanted.member.node_name = "node-" + digits;
  wanted.member.agent_uid = "agent-" + digits;
  wanted.member.zone = "zone-" + std::to_string(number % zones);
  wanted.member.weight = std::uint64_t{64} << 30U;
  return wanted;
}

// `seed` stands for another pool: its UID is what plans are shuffled by.
PlanInput MakeInput(const PoolShape& shape, std::size_t seed) {
  PlanInput input;
  input.pool_uid = "bench-pool-" + std::to_string(seed);
  input.slot_count = shape.slot_count;
  input.replicas = shape.replicas;
  input.balance_slots_max = shape.slot_count;  // the limit is not what is measured
  for (std::size_t i = 0; i < shape.nodes; ++i) {
    input.members.push_back(MakeMember(i, shape.zones));
  }
  return input;
}

PlanResult MustPlan(const Planner& planner, const PlanInput& input) {
  Result<PlanResult> result = planner.Plan(input);
  KVF_CHECK(result.ok(), result.status().message().c_str());
  return *std::move(result);
}

std::map<std::string, std::uint64_t> ByteLoads(const ShardMap& map) {
  std::map<std::string, std::uint64_t> loads;
  for (const Member& member : map.members) loads[member.node_name] = 0;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    for (const MemberIndex owner : map.ByteOwners(slot)) {
      if (owner != kNoOwner) ++loads[map.members[owner].node_name];
    }
  }
  return loads;
}

double MaxOverMean(const ShardMap& map) {
  std::uint64_t largest = 0;
  std::uint64_t total = 0;
  const auto loads = ByteLoads(map);
  for (const auto& [name, load] : loads) {
    largest = std::max(largest, load);
    total += load;
  }
  return static_cast<double>(largest) * static_cast<double>(loads.size()) /
         static_cast<double>(total);
}

// Byte entries that must move at least, from the loads of one exact map to those of the next.
std::uint64_t FewestMoves(const ShardMap& before, const ShardMap& after) {
  const auto had = ByteLoads(before);
  std::uint64_t moves = 0;
  for (const auto& [name, load] : ByteLoads(after)) {
    const auto found = had.find(name);
    const std::uint64_t kept = found == had.end() ? 0 : std::min(found->second, load);
    moves += load - kept;
  }
  return moves;
}

double ThreadCpuMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const char* Verdict(double value, double bar) { return value <= bar ? "ok" : "ABOVE THE BAR"; }

void MeasureBalance(const std::vector<Contender>& contenders, BenchReport& report) {
  std::printf("\nload max/mean of byte owners, 16384 slots, 128 nodes (bar %.3f)\n", kBalanceBar);
  std::printf("  %-22s", "");
  for (const Contender& contender : contenders) std::printf(" %8s", contender.name);
  std::printf("\n");
  double worst = 0;
  for (const PoolShape& shape :
       {PoolShape{.replicas = 1, .zones = 3}, PoolShape{.replicas = 2, .zones = 3},
        PoolShape{.replicas = 1, .zones = 4}, PoolShape{.replicas = 2, .zones = 4},
        PoolShape{.replicas = 3, .zones = 4}}) {
    std::printf("  replicas %u, %zu zones   ", shape.replicas, shape.zones);
    for (const Contender& contender : contenders) {
      const double balance = MaxOverMean(MustPlan(*contender.planner, MakeInput(shape, 0)).map);
      std::printf(" %8.3f", balance);
      if (&contender == &contenders.front()) worst = std::max(worst, balance);
    }
    std::printf("\n");
  }
  std::printf("  sticky: %s\n", Verdict(worst, kBalanceBar));
  report.Add("balance_16384x128", worst, 4);
}

// Moved over the fewest possible, for one event or a series of them.
struct Movement {
  std::uint64_t moved = 0;
  std::uint64_t fewest = 0;

  double ratio() const { return static_cast<double>(moved) / static_cast<double>(fewest); }
};

struct PoolMovement {
  Movement join;
  Movement leave;
  Movement churn;

  double worst() const { return std::max({join.ratio(), leave.ratio(), churn.ratio()}); }
};

// One contender's maps of a pool that changes; StickyQuota's exact shares give the bound.
class ChangingPool {
 public:
  ChangingPool(const Planner& planner, PlanInput input)
      : planner_(planner), input_(std::move(input)), next_number_(input_.members.size()) {
    map_ = MustPlan(planner_, input_).map;
    exact_ = MustPlan(StickyQuota(), input_).map;
  }

  void Join(std::size_t zones) { input_.members.push_back(MakeMember(next_number_++, zones)); }
  void Leave(std::size_t which) {
    input_.members.erase(input_.members.begin() +
                         static_cast<std::ptrdiff_t>(which % input_.members.size()));
  }
  void Settle(Movement& movement) {
    input_.previous = &exact_;
    ShardMap exact = MustPlan(StickyQuota(), input_).map;
    movement.fewest += FewestMoves(exact_, exact);
    exact_ = std::move(exact);
    input_.previous = &map_;
    PlanResult result = MustPlan(planner_, input_);
    movement.moved += result.byte_moves;
    map_ = std::move(result.map);
  }

 private:
  const Planner& planner_;
  PlanInput input_;
  std::size_t next_number_;
  ShardMap map_;
  ShardMap exact_;
};

PoolMovement MeasurePool(const Planner& planner, const PoolShape& shape, std::size_t seed,
                         int churn_steps) {
  PoolMovement movement;
  ChangingPool joined(planner, MakeInput(shape, seed));
  joined.Join(shape.zones);
  joined.Settle(movement.join);
  ChangingPool left(planner, MakeInput(shape, seed));
  left.Leave(seed * 31 + 7);
  left.Settle(movement.leave);
  ChangingPool churned(planner, MakeInput(shape, seed));
  std::uint64_t chance = seed;
  for (int step = 0; step < churn_steps; ++step) {
    chance = chance * 6364136223846793005ULL + 1442695040888963407ULL;
    if ((chance >> 60U) % 2 == 0) {
      churned.Join(shape.zones);
    } else {
      churned.Leave(chance >> 33U);
    }
    churned.Settle(movement.churn);
  }
  return movement;
}

void MeasureMovement(const std::vector<Contender>& contenders, const BenchOptions& options,
                     BenchReport& report) {
  constexpr std::size_t kComparedPools = 2;
  const std::size_t all_pools = options.long_form ? 9 : kComparedPools;
  const int churn_steps = options.long_form ? 60 : 20;
  std::printf(
      "\nbyte entries moved over the fewest possible, 16384 slots, 128 nodes, 3 zones, worst of "
      "%zu pools (2 of the others)\n  (one join, one leave, %d joins and leaves; bars %.2f at R=1, "
      "%.2f above)\n",
      all_pools, churn_steps, kMoveBarR1, kMoveBar);
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    const PoolShape shape{.replicas = replicas};
    for (const Contender& contender : contenders) {
      double join = 0;
      double leave = 0;
      double churn = 0;
      const bool first = &contender == &contenders.front();
      const std::size_t pools = first ? all_pools : kComparedPools;
      for (std::size_t seed = 0; seed < pools; ++seed) {
        const PoolMovement movement = MeasurePool(*contender.planner, shape, seed, churn_steps);
        join = std::max(join, movement.join.ratio());
        leave = std::max(leave, movement.leave.ratio());
        churn = std::max(churn, movement.churn.ratio());
      }
      std::printf("  replicas %u %-8s join %7.3f   leave %7.3f   churn %7.3f", replicas,
                  contender.name, join, leave, churn);
      if (!first) {
        std::printf("\n");
        continue;
      }
      const double worst = std::max({join, leave, churn});
      std::printf("   %s\n", Verdict(worst, replicas == 1 ? kMoveBarR1 : kMoveBar));
      if (replicas == 1) {
        report.Add("move_join_r1", join);
        report.Add("move_leave_r1", std::max(leave, churn));
      } else {
        report.Add("move_r" + std::to_string(replicas), worst);
      }
    }
  }
}

double TimePlan(const Planner& planner, const PlanInput& input) {
  const double begin = ThreadCpuMs();
  const PlanResult result = MustPlan(planner, input);
  return ThreadCpuMs() - begin;
}

void MeasureTime(const std::vector<Contender>& contenders, const BenchOptions& options,
                 BenchReport& report) {
  const int rounds = options.long_form ? 25 : 5;
  std::printf(
      "\nCPU ms of a plan, 65536 slots, 1000 nodes, replicas 2, 3 zones, median of %d rounds "
      "(bar %.0f)\n",
      rounds, kPlanMsBar);
  const PlanInput cold = MakeInput({.slot_count = 65536, .nodes = 1000, .replicas = 2}, 0);
  std::vector<std::array<std::vector<double>, 3>> times(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Planner& planner = *contenders[i].planner;
      if (round > (options.long_form ? 8 : 0) && i > 0) continue;  // the others are slow
      times[i][0].push_back(TimePlan(planner, cold));
      const ShardMap map = MustPlan(planner, cold).map;
      PlanInput next = cold;
      next.previous = &map;
      next.members.push_back(MakeMember(1000, 3));
      times[i][1].push_back(TimePlan(planner, next));
      next.members.pop_back();
      next.members.erase(next.members.begin() + 17 * round);
      times[i][2].push_back(TimePlan(planner, next));
    }
  }
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const std::array<double, 3> medians = {Median(times[i][0]), Median(times[i][1]),
                                           Median(times[i][2])};
    const double worst = *std::max_element(medians.begin(), medians.end());
    std::printf("  %-8s cold %8.1f   join %8.1f   leave %8.1f   %s\n", contenders[i].name,
                medians[0], medians[1], medians[2], i == 0 ? Verdict(worst, kPlanMsBar) : "");
    if (i == 0) report.Add("plan_ms_65536x1000", worst, 1);
  }
}

struct DirectoryFigures {
  double entries = 0;
  double lookups = 0;
  double worst_pool_entries = 0;
};

DirectoryFigures MeasureTrace(const Planner& planner, const Trace& trace, std::size_t nodes,
                              std::size_t pools) {
  std::vector<double> entries;
  std::vector<double> lookups;
  for (std::size_t seed = 0; seed < pools; ++seed) {
    const ShardMap map = MustPlan(planner, MakeInput({.nodes = nodes}, seed)).map;
    DirectoryLoad load(map);
    for (const TraceRequest& request : trace.requests) {
      load.AddChain(FullBlocks(request, trace.block_tokens));
    }
    entries.push_back(load.EntriesMaxOverMean());
    lookups.push_back(load.LookupsMaxOverMean());
  }
  return {Median(entries), Median(lookups), *std::max_element(entries.begin(), entries.end())};
}

Status MeasureDirectory(const std::vector<Contender>& contenders, const BenchOptions& options,
                        BenchReport& report) {
  const char* source_root = std::getenv("KVF_SOURCE_ROOT");
  KVF_ASSIGN_OR_RETURN(
      const TraceDirectory traces,
      FindTraceDirectory(std::getenv("KVF_TRACES"), source_root != nullptr ? source_root : "."));
  std::vector<std::string> files;
  if (traces.found) {
    files.assign(kTraces.begin(), kTraces.end());
  } else {
    files.emplace_back(kTraceExcerpt);
    std::printf(
        "\nskipped: the whole traces are not there (set KVF_TRACES); the excerpt is used\n");
  }
  const std::size_t pools = options.long_form ? 9 : 3;
  std::printf(
      "\ndirectory at first owners, max/mean over nodes, 16384 slots, replicas 1, median of %zu "
      "pools\n  (bars of entries %.2f, %.2f, %.2f; look-ups have none)\n",
      pools, kDirectoryBars[0], kDirectoryBars[1], kDirectoryBars[2]);
  std::array<DirectoryFigures, kDirectoryNodes.size()> worst{};
  std::size_t skipped = 0;
  for (const std::string& file : files) {
    const std::filesystem::path path = traces.path / file;
    if (!std::filesystem::exists(path)) {
      std::printf("skipped: %s is not there\n", path.c_str());
      ++skipped;
      continue;
    }
    KVF_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(path));
    for (std::size_t n = 0; n < kDirectoryNodes.size(); ++n) {
      std::printf("  %-36s %4zu nodes", file.c_str(), kDirectoryNodes[n]);
      for (const Contender& contender : contenders) {
        const bool first = &contender == &contenders.front();
        const DirectoryFigures figures =
            MeasureTrace(*contender.planner, trace, kDirectoryNodes[n], first ? pools : 1);
        std::printf("   %s %6.3f", contender.name, figures.entries);
        if (first) std::printf(" (worst pool %.3f)", figures.worst_pool_entries);
        std::printf(" (look-ups %.2f)", figures.lookups);
        if (!first) continue;
        worst[n].entries = std::max(worst[n].entries, figures.entries);
        worst[n].lookups = std::max(worst[n].lookups, figures.lookups);
      }
      std::printf("\n");
    }
  }
  for (std::size_t n = 0; n < kDirectoryNodes.size(); ++n) {
    std::printf("  worst at %zu nodes: %.3f %s\n", kDirectoryNodes[n], worst[n].entries,
                Verdict(worst[n].entries, kDirectoryBars[n]));
    report.Add("dir_max_over_mean_" + std::to_string(kDirectoryNodes[n]), worst[n].entries);
  }
  for (std::size_t n = 0; n < kDirectoryNodes.size(); ++n) {
    report.Add("dirlookup_max_over_mean_" + std::to_string(kDirectoryNodes[n]), worst[n].lookups);
  }
  report.Add("skipped_cells", static_cast<double>(traces.found ? skipped : kTraces.size()), 0);
  return Status::Ok();
}

Status Run(const BenchOptions& options) {
  BenchReport report("placement");
  const std::vector<Contender> contenders = Contenders();
  MeasureBalance(contenders, report);
  MeasureMovement(contenders, options, report);
  MeasureTime(contenders, options, report);
  KVF_RETURN_IF_ERROR(MeasureDirectory(contenders, options, report));
  KVF_RETURN_IF_ERROR(report.WriteJson(options.json_file));
  report.PrintLastLine();
  return Status::Ok();
}

}  // namespace
}  // namespace kvfabric

int main(int argc, char** argv) {
  kvfabric::BenchOptions options;
  CLI::App app("Balance, movement and speed of the shard map planner, and directory load.");
  app.footer("example: bench/run placement --json placement.json");
  app.add_flag("--long", options.long_form, "more pools, more churn, more rounds");
  app.add_option("--json", options.json_file, "write the figures to this file too");
  CLI11_PARSE(app, argc, argv);
  if (const kvfabric::Status status = kvfabric::Run(options); !status.ok()) {
    std::fprintf(stderr, "kvf-bench-placement: %s\n", status.message().c_str());
    return 1;
  }
  return 0;
}
