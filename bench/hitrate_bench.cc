// kvf-bench-hitrate: contiguous-prefix hit tokens of the real policy code, in percent of all prompt
// tokens, beside the exact optimum. Capacities are shares of a trace's distinct full blocks, so
// that the figures do not depend on block bytes.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/bench_report.h"
#include "bench/block_stream.h"
#include "bench/cache_simulation.h"
#include "bench/fabric_simulation.h"
#include "trace/trace_directory.h"
#include "trace/trace_reader.h"

namespace kvfabric {
namespace {

struct BenchOptions {
  std::string trace_file;
  std::vector<double> capacities{1, 5, 10, 25};
  std::size_t nodes = 1;
  bool long_form = false;
  std::string json_file;
};

struct StreamPlan {
  std::string name;  // in keys
  std::filesystem::path file;
  std::vector<double> capacities;
};

struct StandardStream {
  const char* name;
  const char* file;
  std::vector<double> capacities;
  std::vector<double> long_capacities;
};

const std::vector<StandardStream>& StandardStreams() {
  static const std::vector<StandardStream> streams{
      {"conv", "mooncake_conversation_trace.jsonl", {1, 5, 10, 25}, {0.5, 2, 50}},
      {"syn", "mooncake_synthetic_trace.jsonl", {5, 10, 25}, {1, 2, 50}},
      {"agent", "agentic_merged_1024.jsonl.gz", {1, 2, 5}, {0.5, 10, 25}},
  };
  return streams;
}

std::string Percent(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// The streams that are there; counts the cells of those that are not.
Result<std::vector<StreamPlan>> PlanStreams(const BenchOptions& options, std::size_t& skipped) {
  if (!options.trace_file.empty()) {
    return std::vector<StreamPlan>{{"trace", options.trace_file, options.capacities}};
  }
  const char* source_root = std::getenv("KVF_SOURCE_ROOT");
  KVF_ASSIGN_OR_RETURN(
      const TraceDirectory directory,
      FindTraceDirectory(std::getenv("KVF_TRACES"), source_root != nullptr ? source_root : "."));
  std::vector<StreamPlan> plans;
  for (const StandardStream& stream : StandardStreams()) {
    StreamPlan plan{stream.name, directory.path / stream.file, stream.capacities};
    if (options.long_form) {
      plan.capacities.insert(plan.capacities.end(), stream.long_capacities.begin(),
                             stream.long_capacities.end());
    }
    if (std::filesystem::exists(plan.file)) {
      plans.push_back(plan);
    } else {
      std::printf("skipped: %s is not there\n", plan.file.c_str());
      skipped += plan.capacities.size();
    }
  }
  const auto excerpt = directory.path / kTraceExcerpt;
  if (plans.empty() && std::filesystem::exists(excerpt)) {
    plans.push_back({"excerpt", excerpt, options.capacities});
  }
  if (plans.empty()) {
    return NotFound("traces " + directory.path.string() +
                    ": find: none of ours is there (set KVF_TRACES, or give --trace FILE)");
  }
  return plans;
}

void RunNodes(const BlockStream& stream, const std::string& cell, std::size_t capacity_blocks,
              std::size_t nodes, BenchReport& report) {
  for (const Route route : {Route::kHash, Route::kRoundRobin, Route::kOne}) {
    const FabricShape shape{.nodes = nodes, .capacity_blocks = capacity_blocks, .route = route};
    const FabricCount with = SimulateFabric(stream, shape);
    FabricShape without_spill = shape;
    without_spill.spill = false;
    const FabricCount without = SimulateFabric(stream, without_spill);
    std::string name(RouteName(route));
    std::printf(
        "%14s %zu nodes, %-11s  lru %6.2f  without spill %6.2f  spilled/inserted %.2f\n", "", nodes,
        name.c_str(), with.hits.percent(), without.hits.percent(),
        static_cast<double>(with.spilled_blocks) / static_cast<double>(with.inserted_blocks));
    std::replace(name.begin(), name.end(), '-', '_');  // keys have no hyphen
    report.Add("lru_" + cell + "_nodes" + std::to_string(nodes) + "_" + name, with.hits.percent(),
               2);
  }
}

Status RunStream(const StreamPlan& plan, const BenchOptions& options, BenchReport& report) {
  KVF_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(plan.file));
  const BlockStream stream(trace);
  std::printf("%s: %zu requests, %zu distinct full blocks of %u tokens\n", plan.file.c_str(),
              stream.request_count(), stream.distinct_blocks(), stream.block_tokens());
  std::printf("%14s %9s %8s %8s %9s %14s\n", "cell", "blocks", "lru %", "min %", "lru/min",
              "us per block");
  for (const double percent : plan.capacities) {
    const std::string cell = plan.name + "_" + Percent(percent);
    const std::size_t capacity_blocks = stream.CapacityBlocks(percent);
    KVF_ASSIGN_OR_RETURN(const auto policy, MakeEvictionPolicy("LRU"));
    const HitCount lru = SimulatePolicy(stream, *policy, capacity_blocks);
    const HitCount optimum = SimulateOptimum(stream, capacity_blocks);
    std::printf("%14s %9zu %8.2f %8.2f %9.3f %14.3f\n", cell.c_str(), capacity_blocks,
                lru.percent(), optimum.percent(), lru.percent() / optimum.percent(),
                lru.seconds * 1e6 / static_cast<double>(lru.policy_calls));
    report.Add("lru_" + cell, lru.percent(), 2);
    report.Add("min_" + cell, optimum.percent(), 2);
    const std::size_t nodes = options.nodes > 1 ? options.nodes : (options.long_form ? 3 : 1);
    if (nodes > 1) RunNodes(stream, cell, capacity_blocks, nodes, report);
  }
  return Status::Ok();
}

Status Run(const BenchOptions& options) {
  BenchReport report("hitrate");
  std::size_t skipped = 0;
  KVF_ASSIGN_OR_RETURN(const std::vector<StreamPlan> plans, PlanStreams(options, skipped));
  for (const StreamPlan& plan : plans) KVF_RETURN_IF_ERROR(RunStream(plan, options, report));
  report.Add("skipped_cells", static_cast<double>(skipped), 0);
  KVF_RETURN_IF_ERROR(report.WriteJson(options.json_file));
  report.PrintLastLine();
  return Status::Ok();
}

}  // namespace
}  // namespace kvfabric

int main(int argc, char** argv) {
  kvfabric::BenchOptions options;
  CLI::App app("Hit tokens of the eviction policy, beside the optimum, in percent of all tokens.");
  app.footer(
      "Example: bench/run hitrate --trace examples/conversation_200.jsonl --cap 5,10 --nodes 3");
  app.add_option("--trace", options.trace_file, "a trace (.jsonl, plain or gzip) in place of ours");
  app.add_option("--cap", options.capacities, "for --trace: percent of its distinct full blocks")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "also split each capacity over so many nodes")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_flag("--long", options.long_form, "more capacities, and three nodes for each");
  app.add_option("--json", options.json_file, "write the figures to this file too");
  CLI11_PARSE(app, argc, argv);
  const kvfabric::Status status = kvfabric::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "hitrate: %s\n", status.ToString().c_str());
  return 1;
}
