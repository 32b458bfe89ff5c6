#include "agent/service/grpc_control_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "agent/service/grpc_server.h"
#include "kvfabric/v1/control.grpc.pb.h"
#include "tests/service/test_channel.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

// Takes orders down and refuses maps of an old epoch, as the cluster node does.
class RecordingPort final : public ControlPlanePort {
 public:
  PeerIdentity identity() const override { return {"node-0", "uid-0", 77}; }
  Status ApplyPools(std::uint64_t, std::vector<PoolSpecForAgent> pools) override {
    const std::lock_guard<std::mutex> lock(mu_);
    pools_ = std::move(pools);
    return Status::Ok();
  }
  Status ApplyMap(std::string_view pool_uid, std::string_view shard_map) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (shard_map == "old") return FailedPrecondition("pool: map epoch 3 is older than 4");
    maps_.emplace_back(std::string(pool_uid) + "=" + std::string(shard_map));
    return Status::Ok();
  }
  Status StartDrain(std::uint64_t, std::chrono::seconds deadline) override {
    const std::lock_guard<std::mutex> lock(mu_);
    drain_s_ = deadline.count();
    return Status::Ok();
  }
  Status StopDrain(std::uint64_t) override { return Status::Ok(); }
  std::vector<PoolReport> PoolReports() const override {
    PoolReport report;
    report.uid = "p1";
    report.applied_epoch = 9;
    report.used_bytes = 1234;
    return {report};
  }
  DrainReport DrainProgress() const override {
    DrainReport report;
    report.moved_blocks = 11;
    return report;
  }

  std::vector<PoolSpecForAgent> pools() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return pools_;
  }

  std::vector<std::string> maps() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return maps_;
  }
  std::int64_t drain_s() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return drain_s_;
  }

 private:
  mutable std::mutex mu_;
  std::vector<PoolSpecForAgent> pools_;
  std::vector<std::string> maps_;
  std::int64_t drain_s_ = 0;
};

struct Agent {
  RecordingPort port;
  MetricsRegistry metrics;
  Timer timer{Clock::System()};
  WorkerPool executor{"control", 1, 64};
  std::unique_ptr<GrpcControlService> service;
  std::unique_ptr<GrpcServer> server;

  Agent() {
    GrpcControlService::Options options;
    options.version = "0.1.0";
    options.zone = "zone-a";
    options.arena_bytes = 4096;
    options.tenant_of_token = TestTenantOfToken;
    options.health = [] { return AgentHealth{true, false, "arena: prefaulting"}; };
    GrpcControlService::Environment environment;
    environment.port = &port;
    environment.executor = &executor;
    environment.timer = &timer;
    environment.metrics = &metrics;
    service = std::make_unique<GrpcControlService>(std::move(options), environment);
    auto started = GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service->service()});
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server = std::move(started).value();
  }
};

// One operator stream, spoken to synchronously.
class Operator {
 public:
  Operator(const Agent& agent, const std::string& token)
      : stub_(v1::Control::NewStub(TestChannel(agent.server->port()))) {
    SetToken(context_, token);
    stream_ = stub_->Session(&context_);
  }
  ~Operator() { context_.TryCancel(); }

  void Send(const v1::ControlDown& down) { stream_->Write(down); }
  void Hello(std::uint64_t term, const std::string& id = "op-a",
             std::uint32_t heartbeat_ms = 60'000, const std::string& lease_uid = "lease") {
    v1::ControlDown down;
    down.set_term(term);
    down.mutable_hello()->set_version(1);
    down.mutable_hello()->set_operator_id(id);
    down.mutable_hello()->set_heartbeat_ms(heartbeat_ms);
    down.mutable_hello()->set_lease_uid(lease_uid);
    Send(down);
  }
  // The next message that is not a heartbeat; with `heartbeat` the next that is one.
  std::optional<v1::ControlUp> Next(bool heartbeat = false) {
    v1::ControlUp up;
    while (stream_->Read(&up)) {
      if (up.has_heartbeat() == heartbeat) return up;
    }
    return std::nullopt;
  }
  grpc::Status End() {
    while (Next()) {
    }
    return stream_->Finish();
  }

 private:
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlDown, v1::ControlUp>> stream_;
};

v1::ControlDown Map(std::uint64_t term, const std::string& bytes) {
  v1::ControlDown down;
  down.set_term(term);
  down.mutable_map()->set_pool_uid("p1");
  down.mutable_map()->set_shard_map(bytes);
  return down;
}

v1::ControlDown Pools(std::uint64_t term, std::uint32_t slots) {
  v1::ControlDown down;
  down.set_term(term);
  v1::PoolConfig& pool = *down.mutable_pools()->add_pools();
  pool.set_uid("p1");
  pool.set_name("default/pool");
  pool.set_dram_capacity_bytes(1 << 20);
  pool.set_high_watermark_percent(90);
  pool.set_low_watermark_percent(80);
  pool.set_slots(slots);
  pool.set_replicas(2);
  pool.set_acks_replicated(true);
  auto& tenant = *pool.add_tenants();
  tenant.set_name("blue");
  tenant.set_dram_quota_bytes(4096);
  return down;
}

TEST(GrpcControlService, AnswersHelloWithIdentityThenHeartbeats) {
  Agent agent;
  Operator op(agent, "token-admin");
  op.Hello(3, "op-a", 20);
  const auto hello = op.Next();
  ASSERT_TRUE(hello && hello->has_hello());
  EXPECT_EQ(hello->acknowledged_term(), 3U);
  EXPECT_EQ(hello->hello().node_name(), "node-0");
  EXPECT_EQ(hello->hello().agent_uid(), "uid-0");
  EXPECT_EQ(hello->hello().boot_epoch(), 77U);
  EXPECT_EQ(hello->hello().zone(), "zone-a");
  for (int i = 0; i < 3; ++i) {
    const auto up = op.Next(true);
    ASSERT_TRUE(up);
    EXPECT_TRUE(up->heartbeat().recovering());
    EXPECT_EQ(up->heartbeat().not_ready_reason(), "arena: prefaulting");
    EXPECT_EQ(up->heartbeat().arena_bytes(), 4096U);
    ASSERT_EQ(up->heartbeat().pools_size(), 1);
    EXPECT_EQ(up->heartbeat().pools(0).applied_epoch(), 9U);
    EXPECT_EQ(up->heartbeat().drain().moved_blocks(), 11U);
  }
}

TEST(GrpcControlService, AppliesOrdersInTheOrderOfTheStream) {
  Agent agent;
  Operator op(agent, "token-admin");
  op.Hello(1);
  op.Send(Pools(1, 16'384));
  for (int i = 0; i < 20; ++i) op.Send(Map(1, std::to_string(i)));
  v1::ControlDown drain;
  drain.set_term(1);
  drain.mutable_drain()->set_draining(true);
  drain.mutable_drain()->set_deadline_s(30);
  op.Send(drain);
  v1::ControlDown ping;
  ping.set_term(1);
  ping.mutable_ping()->set_sequence(42);
  op.Send(ping);
  std::optional<v1::ControlUp> up;
  do {
    up = op.Next();
    ASSERT_TRUE(up);
    EXPECT_EQ(up->refused(), "");
  } while (!up->has_pong());
  EXPECT_EQ(up->pong().sequence(), 42U);
  ASSERT_EQ(agent.port.maps().size(), 20U);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(agent.port.maps()[static_cast<std::size_t>(i)], "p1=" + std::to_string(i));
  EXPECT_EQ(agent.port.drain_s(), 30);
  const auto pools = agent.port.pools();
  ASSERT_EQ(pools.size(), 1U);
  EXPECT_EQ(pools[0].replicas, 2U);
  EXPECT_TRUE(pools[0].acks_replicated);
  EXPECT_EQ(pools[0].tenants.at(0).dram_bytes, 4096U);
  EXPECT_EQ(pools[0].lookup_deadline, std::chrono::milliseconds(50));
}

TEST(GrpcControlService, RefusesOldTermsAndEpochsAndGoesOn) {
  Agent agent;
  Operator op(agent, "token-admin");
  op.Hello(5);
  ASSERT_TRUE(op.Next());
  op.Send(Map(4, "new"));
  auto up = op.Next();
  ASSERT_TRUE(up);
  EXPECT_THAT(up->refused(), HasSubstr("term 4 is over"));
  EXPECT_EQ(up->acknowledged_term(), 5U);
  op.Send(Map(5, "old"));
  up = op.Next();
  ASSERT_TRUE(up);
  EXPECT_THAT(up->refused(), HasSubstr("older than 4"));
  op.Send(Pools(5, 1000));
  up = op.Next();
  ASSERT_TRUE(up);
  EXPECT_THAT(up->refused(), HasSubstr("slots must be"));
  op.Send(Map(5, "new"));
  up = op.Next();
  ASSERT_TRUE(up);
  EXPECT_EQ(up->refused(), "");
  EXPECT_EQ(agent.port.maps(), (std::vector<std::string>{"p1=new"}));
}

TEST(GrpcControlService, EndsTheOldLeadersStreamWhenANewOneComes) {
  Agent agent;
  Operator first(agent, "token-admin");
  first.Hello(1);
  ASSERT_TRUE(first.Next());
  Operator second(agent, "token-admin");
  second.Hello(2, "op-b");
  ASSERT_TRUE(second.Next());
  EXPECT_EQ(first.End().error_code(), grpc::StatusCode::ABORTED);
  Operator third(agent, "token-admin");
  third.Hello(1);
  const auto refused = third.Next();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused(), HasSubstr("no longer the leader"));
  EXPECT_EQ(refused->acknowledged_term(), 2U) << "what a restored Lease must go above";
  EXPECT_EQ(third.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// A lost store or another cluster: the new operator's terms begin at 1 again.
TEST(GrpcControlService, ObeysAnotherLeasesOperatorOnceTheFirstIsGone) {
  Agent agent;
  auto first = std::make_unique<Operator>(agent, "token-admin");
  first->Hello(7);
  ASSERT_TRUE(first->Next());
  Operator early(agent, "token-admin");
  early.Hello(1, "op-new", 60'000, "lease-2");
  const auto refused = early.Next();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused(), HasSubstr("op-a of another Lease (lease) is connected"));
  EXPECT_EQ(refused->acknowledged_term(), 0U) << "terms of another Lease say nothing";
  EXPECT_EQ(early.End().error_code(), grpc::StatusCode::ALREADY_EXISTS);

  first.reset();
  // The agent learns of the end a little later; an operator dials again, as here.
  std::unique_ptr<Operator> late;
  std::optional<v1::ControlUp> hello;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do {
    late = std::make_unique<Operator>(agent, "token-admin");
    late->Hello(1, "op-new", 60'000, "lease-2");
    hello = late->Next();
    ASSERT_TRUE(hello);
  } while (!hello->has_hello() && std::chrono::steady_clock::now() < give_up);
  ASSERT_TRUE(hello->has_hello()) << hello->refused();
  EXPECT_EQ(hello->acknowledged_term(), 1U);
  late->Send(Map(1, "new"));
  const auto taken = late->Next();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->refused(), "");
}

TEST(GrpcControlService, RefusesWhatIsNoOperator) {
  Agent agent;
  EXPECT_EQ(Operator(agent, "nonsense").End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Operator(agent, "token-blue").End().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  Operator without_hello(agent, "token-admin");
  without_hello.Send(Map(1, "x"));
  EXPECT_EQ(without_hello.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Operator other_version(agent, "token-admin");
  v1::ControlDown down;
  down.set_term(1);
  down.mutable_hello()->set_version(9);
  other_version.Send(down);
  EXPECT_EQ(other_version.End().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(agent.port.maps().empty());
}

TEST(GrpcControlService, StopsWithAnOpenStream) {
  auto agent = std::make_unique<Agent>();
  Operator op(*agent, "token-admin");
  op.Hello(1, "op-a", 10);
  ASSERT_TRUE(op.Next());
  agent.reset();
  EXPECT_FALSE(op.End().ok());
}

}  // namespace
}  // namespace kvfabric
