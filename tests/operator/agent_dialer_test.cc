// GrpcAgentDialer against a real Control server whose agent is scripted.

#include "operator/controllers/agent_dialer.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "kvfabric/v1/control.grpc.pb.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Remembers what the link told; waits with a deadline.
class Listener final : public AgentLinkListener {
 public:
  void OnIntroduction(AgentIntroduction introduction) override {
    Note([&] { introductions.push_back(std::move(introduction)); });
  }
  void OnReport(AgentReport report) override {
    Note([&] { reports.push_back(std::move(report)); });
  }
  void OnRefused(std::string why, std::uint64_t known_term) override {
    Note([&] {
      refusals.push_back(std::move(why));
      known_terms.push_back(known_term);
    });
  }
  void OnCertificateRequest(std::string request) override {
    Note([&] { requests.push_back(std::move(request)); });
  }
  void OnClosed(Status why) override {
    Note([&] { closed.push_back(std::move(why)); });
  }
  bool WaitFor(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<milliseconds>(seconds(10) * TimeScale());
    MutexLock lock(mu_);
    while (!done()) {
      if (!changed_.WaitUntil(mu_, deadline)) return done();
    }
    return true;
  }

  // Read inside WaitFor, or when nothing is told any more.
  std::vector<AgentIntroduction> introductions;
  std::vector<AgentReport> reports;
  std::vector<std::string> refusals;
  std::vector<std::uint64_t> known_terms;
  std::vector<std::string> requests;
  std::vector<Status> closed;

 private:
  void Note(const std::function<void()>& change) {
    MutexLock lock(mu_);
    change();
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
};

// Answers each message by a script; keeps what came.
class ScriptedAgent final : public v1::Control::Service {
 public:
  ScriptedAgent() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedAgent() override { Stop(); }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  AgentTarget target() const { return {"n0", "127.0.0.1", static_cast<std::uint16_t>(port_)}; }
  std::vector<v1::ControlDown> received() {
    MutexLock lock(mu_);
    return received_;
  }
  std::string token() {
    MutexLock lock(mu_);
    return token_;
  }

  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::ControlUp, v1::ControlDown>* stream) override {
    {
      MutexLock lock(mu_);
      const auto& metadata = context->client_metadata();
      const auto it = metadata.find("authorization");
      token_ = it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
    }
    v1::ControlDown down;
    while (stream->Read(&down)) {
      v1::ControlUp up;
      if (down.has_hello()) {
        up.mutable_hello()->set_node_name("n0");
        up.mutable_hello()->set_agent_uid("uid");
        up.mutable_hello()->set_boot_epoch(7);
      } else if (down.has_pools()) {
        v1::PoolHeartbeat* pool = up.mutable_heartbeat()->add_pools();
        pool->set_uid(down.pools().pools(0).uid());
        pool->set_applied_generation(down.pools().pools(0).generation());
        pool->set_capacity_bytes(down.pools().pools(0).dram_capacity_bytes());
        up.mutable_heartbeat()->set_ready(true);
      } else if (down.has_map()) {
        up.set_refused(std::string(5000, 'x'));
        up.set_acknowledged_term(9);
      }
      const bool drain = down.has_drain();
      {
        MutexLock lock(mu_);
        received_.push_back(std::move(down));
      }
      stream->Write(up);
      if (drain) return {grpc::StatusCode::FAILED_PRECONDITION, "term 9 was seen"};
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  Mutex mu_;
  std::vector<v1::ControlDown> received_ GUARDED_BY(mu_);
  std::string token_ GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

AgentPoolConfig Pool() {
  AgentPoolConfig pool;
  pool.uid = "u1";
  pool.name = "default/main";
  pool.generation = 4;
  pool.dram_capacity_bytes = 1 << 20;
  pool.slots = 16384;
  pool.tenants = {{"a", 5}};
  pool.drain_timeout = seconds(600);
  pool.lookup_deadline = milliseconds(50);
  return pool;
}

TEST(AgentDialer, CarriesOrdersAndReportsUnderTheTerm) {
  ScriptedAgent agent;
  GrpcAgentDialer dialer("secret");
  const auto listener = std::make_shared<Listener>();
  auto link = dialer.Dial(agent.target(), {5, "op", milliseconds(500), "lease"}, listener);
  link->SendPools({Pool()});
  ASSERT_TRUE(listener->WaitFor([&] { return !listener->reports.empty(); }));
  EXPECT_EQ(listener->introductions.at(0).agent_uid, "uid");
  EXPECT_EQ(listener->introductions.at(0).boot_epoch, 7U);
  EXPECT_EQ(listener->reports.at(0).pools.at(0).applied_generation, 4);
  EXPECT_TRUE(listener->reports.at(0).ready);
  link->SendMap("u1", std::make_shared<const std::string>("bytes"));
  ASSERT_TRUE(listener->WaitFor([&] { return !listener->refusals.empty(); }));
  EXPECT_EQ(listener->refusals.at(0).size(), 1024U) << "a text from outside is bounded";
  EXPECT_EQ(listener->known_terms.at(0), 9U);
  EXPECT_EQ(agent.token(), "Bearer secret");
  const auto received = agent.received();
  ASSERT_EQ(received.size(), 3U);
  EXPECT_EQ(received[0].hello().operator_id(), "op");
  EXPECT_EQ(received[0].hello().lease_uid(), "lease");
  EXPECT_EQ(received[0].hello().heartbeat_ms(), 500U);
  for (const v1::ControlDown& down : received) EXPECT_EQ(down.term(), 5U);
  EXPECT_EQ(received[1].pools().pools(0).tenants(0).dram_quota_bytes(), 5U);
  EXPECT_EQ(received[1].pools().pools(0).drain_timeout_s(), 600U);
  EXPECT_EQ(received[2].map().shard_map(), "bytes");
}

TEST(AgentDialer, EndOfTheStreamIsToldWithItsReason) {
  ScriptedAgent agent;
  GrpcAgentDialer dialer("secret");
  const auto listener = std::make_shared<Listener>();
  auto link = dialer.Dial(agent.target(), {5, "op", milliseconds(500), "lease"}, listener);
  link->SendDrain(true, seconds(1));
  ASSERT_TRUE(listener->WaitFor([&] { return !listener->closed.empty(); }));
  EXPECT_EQ(listener->closed.at(0), FailedPrecondition("term 9 was seen"));
  link->SendPools({Pool()});  // into nothing
  link->SendDrain(false, seconds(1));
}

TEST(AgentDialer, NobodyThereClosesTheLink) {
  AgentTarget target;
  {
    ScriptedAgent agent;
    target = agent.target();
  }
  GrpcAgentDialer dialer("secret");
  const auto listener = std::make_shared<Listener>();
  const auto link = dialer.Dial(target, {5, "op", milliseconds(500), "lease"}, listener);
  ASSERT_TRUE(listener->WaitFor([&] { return !listener->closed.empty(); }));
  EXPECT_EQ(listener->closed.at(0).code(), StatusCode::kUnavailable);
}

TEST(AgentDialer, EachDialTriesAtOnce) {
  ScriptedAgent agent;
  GrpcAgentDialer dialer("secret");
  const AgentTarget nobody{"n0", "127.0.0.1", 1};
  for (int i = 0; i < 20; ++i) {  // would be minutes with the library's own backoff
    const auto listener = std::make_shared<Listener>();
    const auto link = dialer.Dial(nobody, {5, "op", milliseconds(500), "lease"}, listener);
    ASSERT_TRUE(listener->WaitFor([&] { return !listener->closed.empty(); }));
  }
}

// Links that are dropped at any moment, from another thread than the one that tells: nothing is
// told after the drop, and the dialer's end waits for all streams.
TEST(AgentDialer, DroppedLinkTellsNothingMore) {
  std::mt19937_64 random(TestSeed());
  ScriptedAgent agent;
  GrpcAgentDialer dialer("secret");
  for (int i = 0; i < 50; ++i) {
    const auto listener = std::make_shared<Listener>();
    auto link = dialer.Dial(agent.target(), {5, "op", milliseconds(500), "lease"}, listener);
    link->SendPools({Pool()});
    if (random() % 2 == 0) link->SendDrain(true, seconds(1));
    if (random() % 3 != 0) {
      ASSERT_TRUE(listener->WaitFor([&] { return !listener->introductions.empty(); }));
    }
    link.reset();
    const std::size_t told =
        listener->introductions.size() + listener->reports.size() + listener->closed.size();
    std::this_thread::yield();
    EXPECT_EQ(listener->introductions.size() + listener->reports.size() + listener->closed.size(),
              told);
  }
}

}  // namespace
}  // namespace kvfabric
