#pragma once

// ReplayEngines: the engines of a replay, one on each node, each with a client whose endpoint list
// starts with its own node's socket. Says which engine a request is at.
//
// Owned by the replay. Any thread may call; engines are added while requests run and never removed,
// so references stay good. At most kMaxEngines.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/replay_events.h"
#include "client/client.h"
#include "common/mutex.h"
#include "common/status.h"
#include "trace/trace_request.h"

namespace kvfabric::cli {

struct ReplayEndpoint {
  std::string node;
  std::filesystem::path socket;
};

struct ReplayEngine {
  std::string node;
  std::vector<std::string> endpoint_nodes;  // as Client counts endpoints
  std::unique_ptr<Client> client;
};

class ReplayEngines {
 public:
  static constexpr std::size_t kMaxEngines = 256;

  struct Options {
    std::string token;
    std::string pool;
    std::string fingerprint;
    std::uint64_t staging_bytes = std::uint64_t{16} << 20U;
  };
  ReplayEngines(Options options, RouteSpec route)
      : options_(std::move(options)), route_(std::move(route)) {}
  ReplayEngines(const ReplayEngines&) = delete;  // engines are referred to
  ReplayEngines& operator=(const ReplayEngines&) = delete;

  // An engine on `endpoints[0].node`; the others are where it turns to when that agent is gone.
  Status Add(const std::vector<ReplayEndpoint>& endpoints) EXCLUDES(mu_);
  // OK when the first `count` engines have an agent to talk to.
  Status WaitConnected(std::chrono::milliseconds budget) EXCLUDES(mu_);
  // NOT_FOUND: `--route node=X` names no engine; says which there are.
  Status CheckRoute() EXCLUDES(mu_);

  // `number`: of the request in the trace. There must be an engine.
  ReplayEngine& At(std::uint64_t number, const TraceRequest& request) EXCLUDES(mu_);
  ClientCounters Counters() EXCLUDES(mu_);

 private:
  std::size_t Choose(std::uint64_t number, const TraceRequest& request) REQUIRES(mu_);
  std::optional<std::size_t> OneNode() REQUIRES(mu_);

  const Options options_;
  const RouteSpec route_;
  Mutex mu_;
  std::deque<ReplayEngine> engines_ GUARDED_BY(mu_);
};

// Index of the node a request goes to by rendezvous hashing of its block at depth 1 (0 where it has
// but one): an added node takes requests from all others alike, and no other request moves.
std::size_t HashRoute(const TraceRequest& request, const std::vector<std::string>& nodes);

}  // namespace kvfabric::cli
