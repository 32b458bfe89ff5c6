// Whole agents in one process: configuration to served bytes, over real sockets.

#include "agent/service/agent_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/engine/cache_engine.h"
#include "common/checksum.h"
#include "kvfabric/v1/cache.grpc.pb.h"
#include "kvfabric/v1/control.grpc.pb.h"
#include "placement/shard_map.h"
#include "placement/shard_map_codec.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/service/test_channel.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

bool NotInterrupted() {
  std::this_thread::yield();
  return false;
}

AgentConfig ConfigIn(const std::filesystem::path& dir, const std::string& node) {
  const std::filesystem::path home = dir / node;
  std::filesystem::create_directories(home);
  const std::filesystem::path tokens = dir / "tokens";
  std::ofstream(tokens) << "admin token-admin\nblue token-blue\ngreen token-green\n";
  ::chmod(tokens.c_str(), 0600);
  AgentConfig config;
  config.node_name = node;
  config.state_dir = home / "state";
  config.socket_path = home / "agent.sock";
  config.tokens_file = tokens;
  config.grpc = config.bulk = config.http = {"127.0.0.1", 0};
  config.arena_bytes = std::uint64_t{32} << 20U;
  return config;
}

std::unique_ptr<AgentProcess> MustStart(const AgentConfig& config) {
  auto agent = AgentProcess::Start(config, "test", NotInterrupted);
  EXPECT_TRUE(agent.ok()) << agent.status().ToString();
  return agent.ok() ? std::move(*agent) : nullptr;
}

nlohmann::json AgentJson(const AgentConfig& config) {
  std::ifstream file(config.state_dir + "/agent.json");
  return nlohmann::json::parse(file);
}

int HttpStatus(const AgentProcess& agent, const std::string& path, std::string* body = nullptr) {
  httplib::Client client("127.0.0.1", agent.endpoints().http.port);
  const auto reply = client.Get(path.c_str());
  if (!reply) return -1;
  if (body != nullptr) *body = reply->body;
  return reply->status;
}

bool WaitUntil(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10) * TimeScale();
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return condition();
}

TEST(AgentProcess, ServesHealthAndMetricsAndTellsItsPorts) {
  const TempDir dir;
  const AgentConfig config = ConfigIn(dir.path(), "node-0");
  auto agent = MustStart(config);
  ASSERT_NE(agent, nullptr);
  EXPECT_EQ(HttpStatus(*agent, "/livez"), 200);
  EXPECT_TRUE(WaitUntil([&] { return HttpStatus(*agent, "/readyz") == 200; }));
  std::string metrics;
  EXPECT_EQ(HttpStatus(*agent, "/metrics", &metrics), 200);
  EXPECT_THAT(metrics, HasSubstr("kvfabric_agent_ready 1"));

  const nlohmann::json json = AgentJson(config);
  EXPECT_EQ(json.at("pid"), ::getpid());
  EXPECT_GT(json.at("start_time").get<std::uint64_t>(), 0U);
  EXPECT_EQ(json.at("node"), "node-0");
  EXPECT_EQ(json.at("grpc"), FormatAddress(agent->endpoints().grpc));
  EXPECT_EQ(json.at("http"), FormatAddress(agent->endpoints().http));
  EXPECT_EQ(json.at("socket"), config.socket_path);
  EXPECT_TRUE(std::filesystem::is_socket(config.socket_path));

  agent.reset();
  EXPECT_FALSE(std::filesystem::exists(config.state_dir + "/agent.json"));
}

TEST(AgentProcess, KeepsItsIdentityAndRaisesItsBootEpoch) {
  const TempDir dir;
  const AgentConfig config = ConfigIn(dir.path(), "node-0");
  auto agent = MustStart(config);
  const nlohmann::json first = AgentJson(config);
  agent.reset();
  agent = MustStart(config);
  const nlohmann::json second = AgentJson(config);
  EXPECT_EQ(first.at("agentUID"), second.at("agentUID"));
  EXPECT_LT(first.at("boot_epoch"), second.at("boot_epoch"));
}

TEST(AgentProcess, RefusesToStartWithTheReason) {
  const TempDir dir;
  const AgentConfig config = ConfigIn(dir.path(), "node-0");
  auto agent = MustStart(config);
  ASSERT_NE(agent, nullptr);

  // The same state directory: the running agent keeps its agent.json.
  auto twin = AgentProcess::Start(config, "test", NotInterrupted);
  EXPECT_EQ(twin.status().code(), StatusCode::kAlreadyExists) << twin.status().ToString();
  EXPECT_TRUE(std::filesystem::exists(config.state_dir + "/agent.json"));

  AgentConfig other = ConfigIn(dir.path(), "node-1");
  other.grpc.port = agent->endpoints().grpc.port;
  auto refused = AgentProcess::Start(other, "test", NotInterrupted);
  EXPECT_THAT(refused.status().message(), HasSubstr(FormatAddress(other.grpc)));
  EXPECT_THAT(refused.status().message(), HasSubstr("listen.grpc"));
  other.grpc.port = 0;
  other.http.port = agent->endpoints().http.port;
  refused = AgentProcess::Start(other, "test", NotInterrupted);
  EXPECT_THAT(refused.status().message(), HasSubstr(FormatAddress(other.http)));
  EXPECT_THAT(refused.status().message(), HasSubstr("listen.http"));
  other.http.port = 0;
  other.bulk.port = agent->endpoints().bulk.port;
  refused = AgentProcess::Start(other, "test", NotInterrupted);
  EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(other.bulk.port)));
  EXPECT_THAT(refused.status().message(), HasSubstr("listen.bulk"));
  other.bulk.port = 0;
  other.arena_bytes = std::uint64_t{1} << 48U;
  refused = AgentProcess::Start(other, "test", NotInterrupted);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("268435456 MiB"));
  other.arena_bytes = config.arena_bytes;
  std::ofstream(dir.path() / "not-a-directory") << "x";
  other.state_dir = dir.path() / "not-a-directory" / "state";
  refused = AgentProcess::Start(other, "test", NotInterrupted);
  EXPECT_THAT(refused.status().message(), HasSubstr("not-a-directory"));
  EXPECT_EQ(HttpStatus(*agent, "/livez"), 200);
}

TEST(AgentProcess, CountsIndexAndDirectoryInItsMemory) {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20U;
  for (const std::uint64_t arena : {128 * mib, 8'192 * mib, 262'144 * mib}) {
    const MemoryNeed need = MemoryNeedOf(arena);
    EXPECT_EQ(need.arena_bytes, arena);
    EXPECT_GE(need.index_bytes, CacheEngine::MostIndexBytes(arena) + 8 * mib);
  }
  EXPECT_LE(MemoryNeedOf(128 * mib).index_bytes, 40 * mib) << "small agents stay small";
  EXPECT_GE(MemoryNeedOf(262'144 * mib).index_bytes, 262'144 / 50 * mib);
}

TEST(AgentProcess, EndsWhileMemoryIsBeingPrefaulted) {
  const TempDir dir;
  AgentConfig config = ConfigIn(dir.path(), "node-0");
  config.arena_bytes = std::uint64_t{512} << 20U;
  const auto agent = AgentProcess::Start(config, "test", [] { return true; });
  EXPECT_EQ(agent.status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(config.state_dir + "/agent.json"));
}

// Gives agents a pool and a map, as the operator does.
class Operator {
 public:
  explicit Operator(const AgentProcess& agent)
      : stub_(v1::Control::NewStub(TestChannel(agent.endpoints().grpc.port))) {
    SetToken(context_, "token-admin");
    stream_ = stub_->Session(&context_);
    v1::ControlDown hello;
    hello.set_term(1);
    hello.mutable_hello()->set_version(1);
    hello.mutable_hello()->set_operator_id("test");
    hello.mutable_hello()->set_heartbeat_ms(50);
    stream_->Write(hello);
    identity = Next().hello();
  }
  ~Operator() {
    context_.TryCancel();
    stream_->Finish();
  }
  v1::ControlUp Next() {
    v1::ControlUp up;
    do {
      EXPECT_TRUE(stream_->Read(&up));
    } while (up.has_heartbeat());
    EXPECT_EQ(up.refused(), "");
    return up;
  }
  v1::Heartbeat NextHeartbeat() {
    v1::ControlUp up;
    do {
      EXPECT_TRUE(stream_->Read(&up));
    } while (!up.has_heartbeat());
    return up.heartbeat();
  }
  void GivePool() {
    v1::ControlDown down;
    down.set_term(1);
    v1::PoolConfig& pool = *down.mutable_pools()->add_pools();
    pool.set_uid("pool-uid");
    pool.set_name("default/pool");
    pool.set_generation(1);
    pool.set_dram_capacity_bytes(8 << 20);
    pool.set_high_watermark_percent(90);
    pool.set_low_watermark_percent(80);
    pool.set_slots(16'384);
    pool.set_replicas(1);
    pool.set_lookup_deadline_ms(2'000);
    stream_->Write(down);
    Next();
  }
  void GiveMap(const ShardMap& map) {
    const auto bytes = SerializeShardMap(map);
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    v1::ControlDown down;
    down.set_term(1);
    down.mutable_map()->set_pool_uid("pool-uid");
    down.mutable_map()->set_shard_map(std::string(AsText(*bytes)));
    stream_->Write(down);
    Next();
  }

  v1::AgentHello identity;

 private:
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlDown, v1::ControlUp>> stream_;
};

// A generic client of one agent.
class Client {
 public:
  Client(const AgentProcess& agent, const std::string& token)
      : token_(token), stub_(v1::Cache::NewStub(TestChannel(agent.endpoints().grpc.port))) {
    SetToken(session_context_, token_);
    session_ = stub_->Session(&session_context_);
    v1::SessionReply reply;
    EXPECT_TRUE(session_->Read(&reply));
    id_ = reply.session_id();
  }
  ~Client() {
    session_context_.TryCancel();
    session_->Finish();
  }
  v1::PutReply Put(const v1::PutRequest& request) {
    v1::PutReply reply;
    grpc::ClientContext context;
    Authorize(context);
    const grpc::Status status = stub_->Put(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  v1::LookupReply Lookup(const v1::LookupRequest& request) {
    v1::LookupReply reply;
    grpc::ClientContext context;
    Authorize(context);
    const grpc::Status status = stub_->Lookup(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  v1::GetReply Get(const v1::GetRequest& request) {
    v1::GetReply reply;
    grpc::ClientContext context;
    Authorize(context);
    const grpc::Status status = stub_->Get(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

 private:
  void Authorize(grpc::ClientContext& context) const {
    SetToken(context, token_);
    context.AddMetadata("kvfabric-session", id_);
  }

  const std::string token_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionReply>> session_;
  std::string id_;
};

template <typename Request>
Request Named(std::size_t keys, const std::string& prefix = "key-") {
  Request request;
  request.set_remaining_ms(5'000);
  request.mutable_ns()->set_pool("default/pool");
  request.mutable_ns()->set_fingerprint("model=m\n");
  for (std::size_t i = 0; i < keys; ++i) {
    request.mutable_range()->add_keys(prefix + std::to_string(i));
  }
  return request;
}

ShardMap MapOf(const std::vector<const AgentProcess*>& agents,
               const std::vector<v1::AgentHello>& identities, std::uint64_t epoch) {
  ShardMap map;
  map.pool_uid = "pool-uid";
  map.term = 1;
  map.epoch = epoch;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    Member member;
    member.node_name = identities[i].node_name();
    member.agent_uid = identities[i].agent_uid();
    member.address = "127.0.0.1";
    member.grpc_port = agents[i]->endpoints().grpc.port;
    member.bulk_port = agents[i]->endpoints().bulk.port;
    member.weight = 1;
    map.members.push_back(member);
  }
  for (std::uint32_t slot = 0; slot < map.slot_count; ++slot) {
    map.table.push_back(static_cast<MemberIndex>(slot % 2));
    map.table.push_back(static_cast<MemberIndex>(1 - slot % 2));
  }
  return map;
}

TEST(AgentProcess, FindsAtOneAgentWhatWasPutAtAnother) {
  const TempDir dir;
  auto a = MustStart(ConfigIn(dir.path(), "node-a"));
  auto b = MustStart(ConfigIn(dir.path(), "node-b"));
  ASSERT_TRUE(a && b);
  Operator to_a(*a), to_b(*b);
  to_a.GivePool();
  to_b.GivePool();
  const ShardMap map = MapOf({a.get(), b.get()}, {to_a.identity, to_b.identity}, 1);
  to_a.GiveMap(map);
  to_b.GiveMap(map);

  constexpr std::size_t kBlocks = 20;
  v1::PutRequest put = Named<v1::PutRequest>(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const std::string bytes(10'000 + i, static_cast<char>('a' + i));
    put.add_blocks()->set_data(bytes);
    put.mutable_blocks(static_cast<int>(i))->set_checksum(BlockChecksum(AsBytes(bytes)));
  }
  Client at_a(*a, "token-blue"), at_b(*b, "token-blue"), stranger(*b, "token-green");
  const v1::PutReply stored = at_a.Put(put);
  ASSERT_EQ(stored.status_size(), static_cast<int>(kBlocks));
  for (const int status : stored.status()) EXPECT_EQ(status, v1::PUT_STATUS_OK);

  // Announced within 50 ms; links come up as fast.
  v1::LookupReply lookup;
  EXPECT_TRUE(WaitUntil([&] {
    lookup = at_b.Lookup(Named<v1::LookupRequest>(kBlocks));
    return lookup.hits() == kBlocks;
  })) << lookup.ShortDebugString();
  EXPECT_EQ(lookup.peer(), kBlocks);
  v1::GetRequest get = Named<v1::GetRequest>(kBlocks);
  get.set_lease_id(lookup.lease_id());
  const v1::GetReply got = at_b.Get(get);
  ASSERT_EQ(got.blocks_size(), static_cast<int>(kBlocks));
  for (std::size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(got.blocks(static_cast<int>(i)).data(),
              std::string(10'000 + i, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(stranger.Lookup(Named<v1::LookupRequest>(kBlocks)).hits(), 0U);

  // Those sent before the puts come first.
  v1::Heartbeat heartbeat;
  EXPECT_TRUE(WaitUntil([&] {
    heartbeat = to_a.NextHeartbeat();
    return heartbeat.pools_size() == 1 && heartbeat.pools(0).blocks() == kBlocks;
  })) << heartbeat.ShortDebugString();
  EXPECT_EQ(heartbeat.pools(0).applied_epoch(), 1U);
  EXPECT_FALSE(heartbeat.recovering());

  // The holder goes: what only it had is a miss within a bounded time, never an error.
  v1::PutRequest more = Named<v1::PutRequest>(1, "only-a-");
  more.add_blocks()->set_data("bytes");
  more.mutable_blocks(0)->set_checksum(BlockChecksum(AsBytes("bytes")));
  EXPECT_EQ(at_a.Put(more).status(0), v1::PUT_STATUS_OK);
  const v1::LookupRequest only_a = Named<v1::LookupRequest>(1, "only-a-");
  EXPECT_TRUE(WaitUntil([&] { return at_b.Lookup(only_a).hits() == 1; }));
  a.reset();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(WaitUntil([&] { return at_b.Lookup(only_a).hits() == 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2) * TimeScale());
}

}  // namespace
}  // namespace kvfabric
