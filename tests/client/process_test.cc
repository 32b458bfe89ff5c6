// Agents that are processes of their own, and an engine written in C.

#include "tests/client/client_fixture.h"
#include "tests/fakes/child_process.h"

namespace kvfabric {
namespace {

class ClientProcess : public ClientTest {
 protected:
  std::unique_ptr<ChildProcess> StartAgent(const std::string& name, int boot_epoch = 1) {
    auto agent = std::make_unique<ChildProcess>(
        std::vector<std::string>{KVF_SCRIPTED_AGENT, path(name), std::to_string(boot_epoch)});
    const std::string ready = agent->ReadLine();
    EXPECT_EQ(ready.substr(0, 6), "ready ");
    if (ready.size() > 6) tcp_endpoint_ = "tcp:127.0.0.1:" + ready.substr(6);
    return agent;
  }
  std::string Unix(const std::string& name) const { return "unix:" + path(name); }
  static Ms UntilServedBy(Client& client, std::size_t index) {
    const Chain chain = Keys(1, "probe-");
    return Took([&] {
      EXPECT_TRUE(Eventually([&] {
        return client.Lookup(chain, 0, 1, {}, Scaled(100)).endpoint == index &&
               client.Stat(Scaled(100)).ok();
      }));
    });
  }
  static int RunC(std::vector<std::string> arguments, std::string& output) {
    arguments.insert(arguments.begin(), KVF_C_API_CHECK);
    ChildProcess program(std::move(arguments));
    return program.Finish(output);
  }

  std::string tcp_endpoint_;
};

TEST_F(ClientProcess, RoutesRoundAStoppedAgentWithinTwoSeconds) {
  const auto first = StartAgent("a.sock");
  const auto second = StartAgent("b.sock");
  const auto client = Connected({Unix("a.sock"), Unix("b.sock")});
  const Chain chain = Keys(4);
  ASSERT_EQ(PutAll(*client, chain, Contents(4, 1'000)).endpoint, 0U);
  first->Signal(SIGSTOP);
  EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
  EXPECT_EQ(PutAll(*client, chain, Contents(4, 1'000)).status[3], PutResult::kOk);
  first->Signal(SIGCONT);
  EXPECT_LT(UntilServedBy(*client, 0), Scaled(3'000));
  EXPECT_EQ(ReadAll(*client, {}, chain, 1'000)[3], Content(1'000, 3));
}

TEST_F(ClientProcess, AnswersByTheBudgetWhileItsOnlyAgentIsStopped) {
  const auto agent = StartAgent("a.sock");
  const auto client = Connected({tcp_endpoint_});
  const Chain chain = Keys(4);
  PutAll(*client, chain, Contents(4, 1'000));
  const Lease lease = LookupAll(*client, chain).lease;
  agent->Signal(SIGSTOP);
  for (int i = 0; i < 20; ++i) {  // through the time until it is given up, and after it
    EXPECT_LT(Took([&] { client->Get(lease, chain, 0, 4, {}, Scaled(100)); }), Scaled(150));
    Rest(Ms(50));
  }
  agent->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return LookupAll(*client, chain).hits == 4; }));
}

TEST_F(ClientProcess, HitsAgainAfterItsAgentWasKilledUnderLoad) {
  auto agent = StartAgent("a.sock");
  const auto client = Connected({Unix("a.sock")});
  const Chain chain = Keys(8);
  for (int epoch = 2; epoch <= 6; ++epoch) {
    PutAll(*client, chain, Contents(8, 5'000));
    ASSERT_EQ(LookupAll(*client, chain).hits, 8U);
    agent->Signal(SIGKILL);
    agent->Wait();
    for (int i = 0; i < 20; ++i) {  // nothing but misses and drops, at once
      EXPECT_LT(Took([&] { LookupAll(*client, chain); }), Scaled(100));
      EXPECT_LT(Took([&] { PutAll(*client, chain, Contents(8, 5'000)); }), Scaled(100));
    }
    agent = StartAgent("a.sock", epoch);
    EXPECT_LT(Took([&] { EXPECT_TRUE(client->WaitConnected(Long()).ok()); }), Scaled(2'000));
    EXPECT_EQ(client->boot_epoch(), static_cast<std::uint64_t>(epoch));
  }
  PutAll(*client, chain, Contents(8, 5'000));
  EXPECT_EQ(ReadAll(*client, {}, chain, 5'000)[7], Content(5'000, 7));
  EXPECT_EQ(client->counters().corrupt, 0U);
}

TEST_F(ClientProcess, KeepsViewsReadableAfterItsAgentWasKilled) {
  const auto agent = StartAgent("a.sock");
  const auto client = Connected({Unix("a.sock")});
  const Chain chain = Keys(1);
  PutAll(*client, chain, Contents(1, 100'000));
  const GetOutcome got = client->Get({}, chain, 0, 1, {}, Long());
  ASSERT_TRUE(got.blocks[0]);
  agent->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return LookupAll(*client, chain).miss == Miss::kNoAgent; }));
  EXPECT_TRUE(got.blocks[0]->Verify());  // no SIGBUS: the memory is sealed and still mapped
}

TEST_F(ClientProcess, ServesAnEngineWrittenInC) {
  for (const bool local : {true, false}) {
    const auto agent = StartAgent(local ? "a.sock" : "b.sock");
    std::string output;
    // The first endpoint is not there.
    EXPECT_EQ(RunC({Unix("nobody.sock") + "," + (local ? Unix("a.sock") : tcp_endpoint_)}, output),
              0)
        << output;
  }
}

// A debugger, a suspended machine: longer than an agent may be silent.
TEST_F(ClientProcess, KeepsItsLeasesWhenItWasStoppedItself) {
  for (const bool local : {true, false}) {
    ScriptedAgent agent(AgentOptions());
    ChildProcess engine(
        {KVF_C_API_CHECK, "--hold", local ? agent.unix_endpoint() : agent.tcp_endpoint()});
    ASSERT_EQ(engine.ReadLine(), "holds");
    engine.Signal(SIGSTOP);
    Rest(Ms(1'600));
    EXPECT_EQ(agent.leases(), 1U);
    engine.Signal(SIGCONT);
    engine.WriteLine("go on");
    std::string output;
    EXPECT_EQ(engine.Finish(output), 0) << output;
    EXPECT_TRUE(Eventually([&] { return agent.connections() == 0; }));
  }
}

TEST_F(ClientProcess, LeavesNothingBehindWhenItIsKilled) {
  ScriptedAgent agent(AgentOptions());
  for (int i = 0; i < 20; ++i) {
    ChildProcess engine(
        {KVF_C_API_CHECK, "--hold", i % 2 == 0 ? agent.unix_endpoint() : agent.tcp_endpoint()});
    // Blocks of the same names: ALREADY_EXISTS counts as put.
    ASSERT_EQ(engine.ReadLine(), "holds");
    EXPECT_EQ(agent.leases(), 1U);
    engine.Signal(SIGKILL);
    EXPECT_EQ(engine.Wait(), -1);
    EXPECT_TRUE(
        Eventually([&] { return agent.leases() == 0 && agent.connections() == 0; }, Scaled(100)));
  }
}

TEST_F(ClientProcess, FailsOpenInCWithoutAnAgent) {
  std::string output;
  EXPECT_EQ(RunC({"--absent", Unix("nobody.sock")}, output), 0) << output;
}

}  // namespace
}  // namespace kvfabric
