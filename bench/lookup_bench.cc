// kvf-bench-lookup: look-ups of 512 blocks on a fabric of three real agents: all here, all at a
// peer, and with a peer that does not answer. Beside each the round trip of an empty request of the
// same client, which is the floor of any look-up.
//
// It starts the fabric through kvctl, so that what is measured is what people run.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_report.h"
#include "cli/fabric_directory.h"
#include "cli/process.h"
#include "client/client.h"
#include "common/clock.h"

namespace kvfabric {
namespace {

constexpr std::uint32_t kBlocks = 512;
constexpr std::size_t kBlockBytes = 4096;
constexpr const char* kPool = R"(apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata: {name: lookup}
spec:
  tiers:
    - {name: dram, type: DRAM, capacityPerNode: 256Mi, evictionPolicy: LRU}
)";

struct BenchOptions {
  std::size_t rounds = 1000;
  bool long_form = false;
  std::string json_file;
};

double Micros(Clock::Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

double Percentile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(samples.size()));
  return samples[std::min(rank, samples.size() - 1)];
}

// A fabric for the life of the object.
class BenchFabric {
 public:
  static Result<std::unique_ptr<BenchFabric>> Start(const std::string& kvctl) {
    std::string name = (std::filesystem::temp_directory_path() / "kvf-lookup-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return ErrnoStatus(errno, name + ": make");
    auto fabric = std::unique_ptr<BenchFabric>(new BenchFabric(kvctl, name));
    std::ofstream(name + "/pool.yaml") << kPool;
    if (fabric->Kvctl("up -f " + name + "/pool.yaml --agents 3") != 0)
      return FailedPrecondition("kvctl up failed");
    return fabric;
  }
  ~BenchFabric() {
    Kvctl("down");
    std::error_code ignored;
    std::filesystem::remove_all(work_, ignored);
  }
  BenchFabric(const BenchFabric&) = delete;  // ends processes
  BenchFabric& operator=(const BenchFabric&) = delete;

  Result<std::unique_ptr<Client>> ClientOf(const std::string& node) const {
    KVF_ASSIGN_OR_RETURN(const cli::FabricDirectory directory, cli::FabricDirectory::At(Dir()));
    ClientOptions options;
    options.endpoints = {"unix:" + directory.agent_socket(node).string()};
    KVF_ASSIGN_OR_RETURN(options.token, directory.TokenOf(cli::kDefaultTenant));
    options.pool = "default/lookup";
    KVF_ASSIGN_OR_RETURN(options.fingerprint, EncodeFingerprint({{"bench", "lookup"}}));
    KVF_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(options));
    KVF_RETURN_IF_ERROR(client->WaitConnected(std::chrono::seconds(10)));
    return client;
  }
  Status Signal(const std::string& node, int signal) const {
    KVF_ASSIGN_OR_RETURN(const cli::FabricDirectory directory, cli::FabricDirectory::At(Dir()));
    const auto process = cli::ReadPidFile(directory.agent_pid(node));
    if (!process) return NotFound(node + ": no pid");
    return cli::SendSignal(*process, signal);
  }

 private:
  BenchFabric(std::string kvctl, std::string work)
      : kvctl_(std::move(kvctl)), work_(std::move(work)) {}
  std::string Dir() const { return work_ + "/fabric"; }
  int Kvctl(const std::string& arguments) const {
    const std::string command = kvctl_ + " " + arguments + " --dir " + Dir() + " > /dev/null";
    return std::system(command.c_str());
  }

  const std::string kvctl_;
  const std::string work_;
};

Result<Chain> ChainOf(std::uint64_t number) {
  std::vector<std::string> keys;
  for (std::uint32_t i = 0; i < kBlocks; ++i)
    keys.push_back("chain " + std::to_string(number) + " block " + std::to_string(i));
  return Chain::Create(std::move(keys));
}

Status PutAll(Client& client, const Chain& chain) {
  const std::vector<std::byte> bytes(kBlockBytes, std::byte{7});
  const std::vector<PutBlock> blocks(kBlocks, PutBlock{.bytes = bytes, .metadata = {}});
  const PutOutcome put = client.Put(chain, 0, blocks, {}, std::chrono::seconds(5));
  for (const PutResult status : put.status) {
    if (status != PutResult::kOk) return Internal("put of a block failed");
  }
  return put.status.size() == kBlocks ? Status::Ok() : Internal("put was not answered");
}

// Latencies of look-ups of all blocks; each lease is released before the next. Those that do not
// say yes to all are counted in `misses`.
std::vector<double> TimeLookups(Client& client, const Chain& chain, std::size_t rounds,
                                std::size_t& misses) {
  std::vector<double> micros;
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto start = Clock::System().Now();
    const LookupOutcome found = client.Lookup(chain, 0, kBlocks, {}, std::chrono::seconds(1));
    micros.push_back(Micros(Clock::System().Now() - start));
    if (found.hits != kBlocks) ++misses;
  }
  return micros;
}

// The floor: the shortest request there is, of the same client to the same agent.
std::vector<double> TimeFloor(Client& client, std::size_t rounds) {
  std::vector<double> micros;
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto start = Clock::System().Now();
    static_cast<void>(client.Stat(std::chrono::seconds(1)));
    micros.push_back(Micros(Clock::System().Now() - start));
  }
  return micros;
}

// How much longer than its budget a look-up takes while a peer does not answer.
std::vector<double> TimeOverruns(const BenchFabric& fabric, Client& client, std::size_t rounds) {
  constexpr std::chrono::milliseconds kBudgets[] = {
      std::chrono::milliseconds(5), std::chrono::milliseconds(10), std::chrono::milliseconds(20),
      std::chrono::milliseconds(50)};
  std::vector<double> overruns;
  for (std::size_t i = 0; i < rounds; ++i) {
    // Peers that stay silent for a second are given up, and then nothing is waited for any more.
    if (i % 10 == 0) {
      static_cast<void>(fabric.Signal("node-2", SIGCONT));
      ::usleep(1'500'000);
      static_cast<void>(fabric.Signal("node-2", SIGSTOP));
    }
    const Result<Chain> chain = ChainOf(1'000'000 + i);  // nobody has it: all owners are asked
    const auto budget = kBudgets[i % std::size(kBudgets)];
    const auto start = Clock::System().Now();
    static_cast<void>(client.Lookup(*chain, 0, kBlocks, {}, budget));
    overruns.push_back(std::max(0.0, Micros(Clock::System().Now() - start - budget) / 1000));
  }
  static_cast<void>(fabric.Signal("node-2", SIGCONT));
  return overruns;
}

void Print(const char* name, const std::vector<double>& micros) {
  std::printf("%-24s p50 %8.0f us   p99 %8.0f us   (%zu calls)\n", name, Percentile(micros, 0.5),
              Percentile(micros, 0.99), micros.size());
}

Status RunBench(const BenchOptions& options) {
  const char* bin = std::getenv("KVF_BIN");
  const std::string kvctl = std::string(bin != nullptr ? bin : "build/release/bin") + "/kvctl";
  KVF_ASSIGN_OR_RETURN(const auto fabric, BenchFabric::Start(kvctl));
  KVF_ASSIGN_OR_RETURN(const auto here, fabric->ClientOf("node-0"));
  KVF_ASSIGN_OR_RETURN(const auto there, fabric->ClientOf("node-1"));
  KVF_ASSIGN_OR_RETURN(const Chain chain, ChainOf(0));
  KVF_RETURN_IF_ERROR(PutAll(*here, chain));
  ::usleep(500'000);  // announcements are due within 50 ms
  const std::size_t rounds = options.long_form ? options.rounds * 5 : options.rounds;
  std::size_t misses = 0;
  const auto floor = TimeFloor(*here, rounds);
  const auto local = TimeLookups(*here, chain, rounds, misses);
  const auto remote = TimeLookups(*there, chain, rounds, misses);
  const auto overruns = TimeOverruns(*fabric, *here, options.long_form ? 200 : 60);
  std::printf("look-ups of %u blocks, three agents; %zu did not find all\n", kBlocks, misses);
  Print("empty request", floor);
  Print("all at this agent", local);
  Print("all at a peer", remote);
  std::printf("%-24s p50 %8.2f ms   p99 %8.2f ms   (%zu calls)\n", "over the deadline",
              Percentile(overruns, 0.5), Percentile(overruns, 0.99), overruns.size());
  if (misses > rounds / 100) return Internal("too many look-ups did not find all blocks");
  BenchReport report("lookup");
  report.Add("local512_us_p50", Percentile(local, 0.5), 1);
  report.Add("local512_us_p99", Percentile(local, 0.99), 1);
  report.Add("remote512_us_p50", Percentile(remote, 0.5), 1);
  report.Add("remote512_us_p99", Percentile(remote, 0.99), 1);
  report.Add("empty_us_p50", Percentile(floor, 0.5), 1);
  report.Add("deadline_overrun_ms_p99", Percentile(overruns, 0.99), 2);
  KVF_RETURN_IF_ERROR(report.WriteJson(options.json_file));
  report.PrintLastLine();
  return Status::Ok();
}

}  // namespace
}  // namespace kvfabric

int main(int argc, char** argv) {
  kvfabric::BenchOptions options;
  CLI::App app("Look-ups of 512 blocks, here and at a peer, and overrun of deadlines.");
  app.add_flag("--long", options.long_form, "five times as many calls");
  app.add_option("--rounds", options.rounds, "look-ups of each kind")->capture_default_str();
  app.add_option("--json", options.json_file, "write the figures to this file too");
  app.footer("example: bench/run lookup --rounds 200 --json lookup.json");
  CLI11_PARSE(app, argc, argv);
  const kvfabric::Status done = kvfabric::RunBench(options);
  if (done.ok()) return 0;
  std::fprintf(stderr, "lookup: %s\n", done.ToString().c_str());
  return 1;
}
