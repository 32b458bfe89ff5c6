#include "cli/replay_engines.h"

#include <charconv>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/clock.h"

namespace kvfabric::cli {
namespace {

std::uint64_t RouteBlock(const TraceRequest& request) {
  if (request.block_ids.empty()) return 0;
  return request.block_ids[request.block_ids.size() > 1 ? 1 : 0];
}

std::uint64_t Score(std::uint64_t block, const std::string& node) {
  std::string text(sizeof(block), '\0');
  StoreLe(reinterpret_cast<std::byte*>(text.data()), block);
  return Hash64(AsBytes(text + node));
}

}  // namespace

std::size_t HashRoute(const TraceRequest& request, const std::vector<std::string>& nodes) {
  const std::uint64_t block = RouteBlock(request);
  std::size_t best = 0;
  std::uint64_t best_score = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::uint64_t score = Score(block, nodes[i]);
    if (i != 0 && score <= best_score) continue;
    best = i;
    best_score = score;
  }
  return best;
}

Status ReplayEngines::Add(const std::vector<ReplayEndpoint>& endpoints) {
  ReplayEngine engine;
  engine.node = endpoints.at(0).node;
  ClientOptions options;
  for (const ReplayEndpoint& endpoint : endpoints) {
    options.endpoints.push_back("unix:" + endpoint.socket.string());
    engine.endpoint_nodes.push_back(endpoint.node);
  }
  options.token = options_.token;
  options.pool = options_.pool;
  options.fingerprint = options_.fingerprint;
  options.staging_bytes = options_.staging_bytes;
  KVF_ASSIGN_OR_RETURN(engine.client, Client::Create(std::move(options)));
  const MutexLock lock(mu_);
  if (engines_.size() >= kMaxEngines)
    return ResourceExhausted("replay: at most " + std::to_string(kMaxEngines) + " engines");
  engines_.push_back(std::move(engine));
  return Status::Ok();
}

Status ReplayEngines::WaitConnected(std::chrono::milliseconds budget) {
  const Deadline deadline = Deadline::After(Clock::System(), budget);
  std::vector<ReplayEngine*> engines;
  {
    const MutexLock lock(mu_);
    for (ReplayEngine& engine : engines_) engines.push_back(&engine);
  }
  for (ReplayEngine* engine : engines) {
    const Status connected = engine->client->WaitConnected(deadline.Remaining(Clock::System()));
    if (!connected.ok()) return connected.WithContext("engine on " + engine->node);
  }
  return Status::Ok();
}

std::optional<std::size_t> ReplayEngines::OneNode() {
  std::size_t index = 0;
  const char* const end = route_.node.data() + route_.node.size();
  const auto parsed = std::from_chars(route_.node.data(), end, index);
  if (parsed.ec == std::errc() && parsed.ptr == end)
    return index < engines_.size() ? std::optional(index) : std::nullopt;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i].node == route_.node) return i;
  }
  return std::nullopt;
}

Status ReplayEngines::CheckRoute() {
  const MutexLock lock(mu_);
  if (route_.kind != RouteSpec::Kind::kOneNode || OneNode()) return Status::Ok();
  std::string names;
  for (const ReplayEngine& engine : engines_) names.append(" ").append(engine.node);
  return NotFound("--route node=" + route_.node + ": no such node: there are" + names +
                  " (or 0 to " + std::to_string(engines_.size() - 1) + ")");
}

std::size_t ReplayEngines::Choose(std::uint64_t number, const TraceRequest& request) {
  switch (route_.kind) {
    case RouteSpec::Kind::kRoundRobin:
      return number % engines_.size();
    case RouteSpec::Kind::kOneNode:
      return OneNode().value_or(0);
    case RouteSpec::Kind::kHash:
      break;
  }
  std::vector<std::string> nodes;
  for (const ReplayEngine& engine : engines_) nodes.push_back(engine.node);
  return HashRoute(request, nodes);
}

ReplayEngine& ReplayEngines::At(std::uint64_t number, const TraceRequest& request) {
  const MutexLock lock(mu_);
  return engines_[Choose(number, request)];
}

ClientCounters ReplayEngines::Counters() {
  const MutexLock lock(mu_);
  ClientCounters sum;
  for (const ReplayEngine& engine : engines_) {
    const ClientCounters one = engine.client->counters();
    sum.missed_no_agent += one.missed_no_agent;
    sum.puts_dropped += one.puts_dropped;
    sum.corrupt += one.corrupt;
    sum.connects += one.connects;
  }
  return sum;
}

}  // namespace kvfabric::cli
