#pragma once

// TestCluster: FabricNodes of one process over a MemoryNetwork, each with an engine over a small
// arena, and short synchronous calls for tests. Real time; every wait is a condition with a limit.

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/fabric_node.h"
#include "agent/tier/dram_arena.h"
#include "placement/shard_map.h"
#include "tests/fakes/memory_peer_link.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric {

inline constexpr std::uint64_t kTestBlockBytes = 16'384;

// Polls until `condition` holds; false when it did not within `limit` (times KVF_TIME_SCALE).
bool Eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::milliseconds(5000));

// Keys of a chain: NAME/0, NAME/1, ...
std::vector<std::string> ChainKeys(const std::string& name, std::size_t count);
KeyRange ChainRange(const std::string& name, std::uint32_t first, std::size_t count);
// Content that tells key and version.
std::string BlockContent(const std::string& key, const std::string& version = "",
                         std::uint64_t bytes = kTestBlockBytes);

// One agent. Its state directory outlives a restart.
class TestNode {
 public:
  struct Options {
    std::string name;
    std::uint16_t port = 0;
    std::uint64_t arena_bytes = std::uint64_t{64} << 20U;
    LeaseTableOptions leases;
  };
  TestNode(MemoryNetwork& network, const std::filesystem::path& directory, Options options);
  ~TestNode();  // as SIGKILL

  FabricNode& fabric() { return *fabric_; }
  MetricsRegistry& metrics() { return metrics_; }
  const std::string& name() const { return options_.name; }
  PoolRef pool(const std::string& uid = "pool-uid") { return fabric_->pools().Find(uid); }

 private:
  MemoryNetwork& network_;
  const Options options_;
  MetricsRegistry metrics_;
  std::unique_ptr<AgentState> state_;
  std::unique_ptr<DramArena> arena_;
  Timer timer_;
  WorkerPool background_;
  WorkerPool copy_;
  std::unique_ptr<FabricNode> fabric_;
};

class TestCluster {
 public:
  struct Options {
    std::vector<std::string> nodes;
    std::map<std::string, std::string> zones = {};
    std::uint64_t capacity_bytes = std::uint64_t{8} << 20U;
    std::uint64_t arena_bytes = std::uint64_t{64} << 20U;
    std::uint32_t replicas = 1;
    bool acks_replicated = false;
    bool locality_spread = false;
    LeaseTableOptions leases = {};
  };
  explicit TestCluster(Options options);
  ~TestCluster();

  TestNode& node(const std::string& name) { return *nodes_.at(name); }
  FabricNode& fabric(const std::string& name) { return nodes_.at(name)->fabric(); }
  MemoryNetwork& network() { return network_; }
  PoolSpecForAgent& spec() { return spec_; }

  // Kill and Start: as SIGKILL and a new run over the same state directory.
  void Kill(const std::string& name);
  void Start(const std::string& name);
  // The pool to all nodes that run.
  void ApplyPools();
  // Owners of slot s: members s, s+1, ... of `members`, round robin; the next epoch; to all nodes
  // in `to` (empty: all that run).
  ShardMap MakeMap(const std::vector<std::string>& members,
                   const std::map<std::string, MemberState>& states = {});
  // To the nodes in `to`; empty: all that run.
  void ApplyMap(const ShardMap& map, const std::vector<std::string>& to = {});
  // All links up and every announcement taken.
  bool Settle();

  SessionId session(const std::string& node, const std::string& tenant = "default");
  NamespaceRef ns(const std::string& node, const std::string& tenant = "default",
                  NamespaceKind kind = NamespaceKind::kChain);
  PutAnswer Put(const std::string& node, const KeyRange& range, const std::string& version = "",
                Lane lane = {});
  Result<LookupAnswer> Lookup(const std::string& node, const KeyRange& range,
                              std::vector<Lane> lanes = {Lane{}},
                              std::chrono::milliseconds deadline = std::chrono::milliseconds(2000));
  Result<GetAnswer> Get(const std::string& node, const KeyRange& range, std::uint64_t lease_id = 0,
                        Lane lane = {},
                        std::chrono::milliseconds deadline = std::chrono::milliseconds(2000));
  void Release(const std::string& node, std::uint64_t lease_id);
  // Keys from the first whose bytes are right; a wrong byte fails the test.
  std::size_t Read(const std::string& node, const KeyRange& range);

 private:
  const Options options_;
  MemoryNetwork network_;
  TempDir directory_;
  PoolSpecForAgent spec_;
  std::uint64_t epoch_ = 0;
  std::map<std::string, std::uint16_t> ports_;
  std::map<std::string, std::string> agent_uids_;
  std::map<std::string, std::unique_ptr<TestNode>> nodes_;
  std::map<std::string, SessionId> sessions_;  // by node/tenant
};

// Waits for the completion of one call.
template <typename T>
class Waiter {
 public:
  Completion<T> done() {
    return [state = state_](Result<T> result) { state->set_value(std::move(result)); };
  }
  Result<T> Wait() { return state_->get_future().get(); }

 private:
  std::shared_ptr<std::promise<Result<T>>> state_ = std::make_shared<std::promise<Result<T>>>();
};

}  // namespace kvfabric
