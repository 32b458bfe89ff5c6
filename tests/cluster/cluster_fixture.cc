#include "tests/cluster/cluster_fixture.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "placement/shard_map_codec.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {

bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto scaled =
      std::chrono::milliseconds(static_cast<std::int64_t>(double(limit.count()) * TimeScale()));
  const auto end = std::chrono::steady_clock::now() + scaled;
  std::mutex mu;
  std::condition_variable never;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::unique_lock<std::mutex> lock(mu);
    never.wait_for(lock, std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::string> ChainKeys(const std::string& name, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t depth = 0; depth < count; ++depth) {
    keys.push_back(name + "/" + std::to_string(depth));
  }
  return keys;
}

KeyRange ChainRange(const std::string& name, std::uint32_t first, std::size_t count) {
  const std::vector<std::string> keys = ChainKeys(name, first + count);
  KeyRange range;
  range.first = first;
  range.keys.assign(keys.begin() + first, keys.end());
  if (first > 0) range.parent_key = keys[first - 1];
  if (count > 0) range.run_tag = keys[RunStart(first)];
  return range;
}

std::string BlockContent(const std::string& key, const std::string& version, std::uint64_t bytes) {
  std::string content;
  content.reserve(bytes + key.size() + 16);
  while (content.size() < bytes) content += key + "#" + version + ";";
  content.resize(bytes);
  return content;
}

TestNode::TestNode(MemoryNetwork& network, const std::filesystem::path& directory, Options options)
    : network_(network),
      options_(std::move(options)),
      timer_(Clock::System()),
      background_("background", 2, 1U << 16U),
      copy_("copy", 2, 1U << 12U) {
  state_ = AgentState::Open(directory, Clock::System()).value();
  arena_ = DramArena::Create({.bytes = options_.arena_bytes, .memfd_bytes = 1U << 20U}).value();
  const PeerIdentity identity{options_.name, state_->agent_uid(), state_->boot_epoch()};
  FabricNode::Environment environment;
  environment.clock = &Clock::System();
  environment.timer = &timer_;
  environment.background = &background_;
  environment.copy = &copy_;
  environment.metrics = &metrics_;
  environment.connector = network_.ConnectorOf(identity);
  environment.state = state_.get();
  environment.make_engine = [this](CacheEngine::Options engine) {
    CacheEngine::Environment borrowed;
    borrowed.arena = arena_.get();
    borrowed.clock = &Clock::System();
    borrowed.background = &background_;
    borrowed.metrics = &metrics_;
    return CacheEngine::Create(std::move(engine), borrowed);
  };
  FabricNode::Options fabric;
  fabric.node_name = options_.name;
  fabric.leases = options_.leases;
  fabric.peers = {.first_backoff = std::chrono::milliseconds(50),
                  .last_backoff = std::chrono::milliseconds(200)};
  fabric_ = std::make_unique<FabricNode>(std::move(fabric), std::move(environment));
  network_.Register(identity, options_.port, &fabric_->peer_handler());
}

TestNode::~TestNode() {
  network_.Kill(options_.name);
  fabric_.reset();
  copy_.Shutdown();
  background_.Shutdown();
}

TestCluster::TestCluster(Options options) : options_(std::move(options)) {
  spec_.uid = "pool-uid";
  spec_.name = "ns/pool";
  spec_.generation = 1;
  spec_.dram_capacity_bytes = options_.capacity_bytes;
  spec_.replicas = options_.replicas;
  spec_.acks_replicated = options_.acks_replicated;
  spec_.locality_spread = options_.locality_spread;
  for (const std::string& name : options_.nodes) {
    ports_[name] = static_cast<std::uint16_t>(7000 + ports_.size());
    Start(name);
  }
  ApplyPools();
  ApplyMap(MakeMap(options_.nodes));
}

TestCluster::~TestCluster() {
  while (!nodes_.empty()) Kill(std::string(nodes_.begin()->first));  // its own goes with the node
}

void TestCluster::Kill(const std::string& name) {
  nodes_.erase(name);
  std::erase_if(sessions_, [&](const auto& entry) { return entry.first.starts_with(name + "/"); });
}

void TestCluster::Start(const std::string& name) {
  TestNode::Options node;
  node.name = name;
  node.port = ports_.at(name);
  node.arena_bytes = options_.arena_bytes;
  node.leases = options_.leases;
  nodes_[name] = std::make_unique<TestNode>(network_, directory_.path() / name, std::move(node));
  agent_uids_[name] = nodes_[name]->fabric().identity().agent_uid;
}

void TestCluster::ApplyPools() {
  for (const auto& [name, node] : nodes_) {
    const Status applied = node->fabric().ApplyPools(1, {spec_});
    EXPECT_TRUE(applied.ok()) << applied.ToString();
  }
}

ShardMap TestCluster::MakeMap(const std::vector<std::string>& members,
                              const std::map<std::string, MemberState>& states) {
  ShardMap map;
  map.pool_uid = spec_.uid;
  map.term = 1;
  map.epoch = ++epoch_;
  map.slot_count = spec_.slots;
  map.replicas = spec_.replicas;
  map.owners_per_slot = OwnersPerSlot(spec_.replicas);
  std::vector<bool> owns;
  for (const std::string& name : members) {
    Member member;
    member.node_name = name;
    member.agent_uid = agent_uids_.at(name);
    member.address = "memory";
    member.grpc_port = ports_.at(name);
    if (const auto zone = options_.zones.find(name); zone != options_.zones.end()) {
      member.zone = zone->second;
    }
    if (const auto state = states.find(name); state != states.end()) member.state = state->second;
    owns.push_back(member.state != MemberState::kLost && member.state != MemberState::kDraining);
    map.members.push_back(std::move(member));
  }
  // Who owns nothing is skipped, so that the others keep what they had, as the planner would.
  for (std::uint32_t slot = 0; slot < map.slot_count; ++slot) {
    std::uint32_t column = 0;
    for (std::uint32_t step = 0; step < members.size() && column < map.owners_per_slot; ++step) {
      const auto member = static_cast<MemberIndex>((slot + step) % members.size());
      if (!owns[member]) continue;
      map.table.push_back(member);
      ++column;
    }
    for (; column < map.owners_per_slot; ++column) map.table.push_back(kNoOwner);
  }
  EXPECT_TRUE(map.Validate().ok()) << map.Validate().ToString();
  return map;
}

void TestCluster::ApplyMap(const ShardMap& map, const std::vector<std::string>& to) {
  const std::vector<std::byte> bytes = SerializeShardMap(map).value();
  for (const auto& [name, node] : nodes_) {
    if (!to.empty() && std::find(to.begin(), to.end(), name) == to.end()) continue;
    const Status applied = node->fabric().ApplyMap(map.pool_uid, AsText(bytes));
    EXPECT_TRUE(applied.ok()) << applied.ToString();
  }
}

bool TestCluster::Settle() {
  return Eventually([this] {
    for (const auto& [name, node] : nodes_) {
      const auto links = node->fabric().peers().UpLinks();
      const std::size_t others = nodes_.size() - 1;
      if (links.size() < std::min(others, node->fabric().peers().size())) return false;
      for (const auto& [peer, link] : links) {
        if (link->peer_state().pools.empty()) return false;
      }
      if (!node->pool()->announcer().Idle()) return false;
    }
    return true;
  });
}

SessionId TestCluster::session(const std::string& node, const std::string& tenant) {
  const auto [found, fresh] = sessions_.try_emplace(node + "/" + tenant, 0);
  if (fresh) found->second = fabric(node).OpenSession(tenant);
  return found->second;
}

NamespaceRef TestCluster::ns(const std::string& node, const std::string& tenant,
                             NamespaceKind kind) {
  return fabric(node).ResolveNamespace(spec_.name, tenant, "model=m\n", kind).value();
}

PutAnswer TestCluster::Put(const std::string& node, const KeyRange& range,
                           const std::string& version, Lane lane) {
  std::vector<std::string> contents;
  for (const std::string& key : range.keys) contents.push_back(BlockContent(key, version));
  PutArgs args;
  args.ns = ns(node);
  args.lane = lane;
  args.range = range;
  for (const std::string& content : contents) args.items.push_back({AsBytes(content), 0, ""});
  Waiter<PutAnswer> waiter;
  fabric(node).Put(session(node), std::move(args),
                   Deadline::After(Clock::System(), std::chrono::seconds(10)), waiter.done());
  return waiter.Wait().value();
}

Result<LookupAnswer> TestCluster::Lookup(const std::string& node, const KeyRange& range,
                                         std::vector<Lane> lanes,
                                         std::chrono::milliseconds deadline) {
  Waiter<LookupAnswer> waiter;
  fabric(node).Lookup(session(node), {ns(node), std::move(lanes), range},
                      Deadline::After(Clock::System(), deadline), waiter.done());
  return waiter.Wait();
}

Result<GetAnswer> TestCluster::Get(const std::string& node, const KeyRange& range,
                                   std::uint64_t lease_id, Lane lane,
                                   std::chrono::milliseconds deadline) {
  GetArgs args;
  args.ns = ns(node);
  args.lane = lane;
  args.range = range;
  args.lease_id = lease_id;
  Waiter<GetAnswer> waiter;
  fabric(node).Get(session(node), std::move(args), Deadline::After(Clock::System(), deadline),
                   waiter.done());
  return waiter.Wait();
}

void TestCluster::Release(const std::string& node, std::uint64_t lease_id) {
  fabric(node).Release(session(node), {lease_id});
}

std::size_t TestCluster::Read(const std::string& node, const KeyRange& range) {
  constexpr std::size_t kAtOnce = 16;  // within the budget for fetched blocks
  std::size_t right = 0;
  while (right < range.keys.size()) {
    KeyRange part = range;
    const std::size_t count = std::min(kAtOnce, range.keys.size() - right);
    part.first = range.first + static_cast<std::uint32_t>(right);
    const auto begin = range.keys.begin() + static_cast<std::ptrdiff_t>(right);
    part.keys.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    const std::uint32_t run = RunStart(part.first);
    if (run >= range.first) part.run_tag = range.keys[run - range.first];
    const Result<GetAnswer> answer = Get(node, part);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    if (!answer.ok()) return right;
    std::size_t got = 0;
    for (; got < count && answer->blocks[got]; ++got) {
      EXPECT_EQ(AsText(answer->blocks[got].bytes()), BlockContent(part.keys[got]))
          << part.keys[got];
    }
    Release(node, answer->lease_id);
    right += got;
    if (got < count) break;
  }
  return right;
}

}  // namespace kvfabric
