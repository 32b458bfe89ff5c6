// Agents that stop, die, come back, refuse, or are somebody else.

#include <atomic>
#include <thread>

#include "tests/client/client_fixture.h"
#include "tests/fakes/dead_ends.h"

namespace kvfabric {
namespace {

class ClientFailover : public ClientTest {
 protected:
  // Asks until endpoint `index` answers; how long that took. No call may overrun its budget.
  static Ms UntilServedBy(Client& client, std::size_t index) {
    const Chain chain = Keys(1, "probe-");
    return Took([&] {
      EXPECT_TRUE(Eventually([&] {
        LookupOutcome found;
        const Ms took = Took([&] { found = client.Lookup(chain, 0, 1, {}, Scaled(100)); });
        EXPECT_LT(took, Scaled(200));
        return found.endpoint == index && found.miss == Miss::kNotFound;
      }));
    });
  }
};

TEST_F(ClientFailover, LeavesAStoppedAgentWithinTwoSecondsAndReturnsToIt) {
  ScriptedAgent first(AgentOptions("a.sock"));
  ScriptedAgent second(AgentOptions("b.sock"));
  const auto client = Connected({first.unix_endpoint(), second.unix_endpoint()});
  const Chain chain = Keys(2);
  PutAll(*client, chain, Contents(2, 100));
  ASSERT_EQ(LookupAll(*client, chain).endpoint, 0U);
  first.Freeze();
  EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
  EXPECT_EQ(PutAll(*client, chain, Contents(2, 100)).endpoint, 1U);
  first.Thaw();
  EXPECT_LT(UntilServedBy(*client, 0), Scaled(3'000));
  EXPECT_EQ(LookupAll(*client, chain).hits, 2U);
}

TEST_F(ClientFailover, LeavesAStoppedAgentOverTcpToo) {
  ScriptedAgent first(AgentOptions("a.sock"));
  ScriptedAgent second(AgentOptions("b.sock"));
  const auto client = Connected({first.tcp_endpoint(), second.tcp_endpoint()});
  first.Freeze();
  EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
  first.Thaw();
}

// The answer to a PING may queue behind many blocks.
TEST_F(ClientFailover, StaysWithAnAgentAsLongAsAnythingComes) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.tcp_endpoint()});
  agent.On(FrameOp::kPing, [](const std::shared_ptr<ScriptedAgent::Exchange>&) {});
  const auto until = std::chrono::steady_clock::now() + Ms(2'500);
  while (std::chrono::steady_clock::now() < until) {
    EXPECT_TRUE(client->Stat(Long()).ok());
    Rest(Ms(50));
  }
  EXPECT_EQ(client->counters().connects, 1U);
  // Without any, it is given up.
  EXPECT_TRUE(Eventually([&] { return agent.received(FrameOp::kHello) >= 2; }, Scaled(2'000)));
}

TEST_F(ClientFailover, SkipsStoppedAgentsAndBlackholesOnItsWay) {
  const Blackhole blackhole;
  ScriptedAgent first(AgentOptions("a.sock"));
  ScriptedAgent last(AgentOptions("b.sock"));
  const auto client = Connected({first.unix_endpoint(), blackhole.endpoint(), last.tcp_endpoint()});
  first.Freeze();
  EXPECT_LT(UntilServedBy(*client, 2), Scaled(2'000));
  first.Thaw();
  EXPECT_LT(UntilServedBy(*client, 0), Scaled(3'000));
}

TEST_F(ClientFailover, UsesTheNextEndpointAtOnceWhenTheAgentDies) {
  auto first = std::make_unique<ScriptedAgent>(AgentOptions("a.sock"));
  ScriptedAgent second(AgentOptions("b.sock"));
  const auto client = Connected({first->unix_endpoint(), second.unix_endpoint()});
  UntilServedBy(*client, 0);
  first.reset();
  EXPECT_LT(UntilServedBy(*client, 1), Scaled(1'000));
  first = std::make_unique<ScriptedAgent>(AgentOptions("a.sock"));
  EXPECT_LT(UntilServedBy(*client, 0), Scaled(3'000));
}

TEST_F(ClientFailover, AttachesAgainWithinTwoSecondsOfARestart) {
  auto agent = std::make_unique<ScriptedAgent>(AgentOptions());
  const auto client = Connected({agent->unix_endpoint()});
  const Chain chain = Keys(3);
  PutAll(*client, chain, Contents(3, 200));
  LookupOutcome found = LookupAll(*client, chain);
  ASSERT_EQ(found.hits, 3U);
  for (std::uint64_t epoch = 2'001; epoch < 2'004; ++epoch) {
    agent.reset();
    EXPECT_EQ(LookupAll(*client, chain).miss, Miss::kNoAgent);
    ScriptedAgent::Options options = AgentOptions();
    options.boot_epoch = epoch;
    agent = std::make_unique<ScriptedAgent>(std::move(options));
    EXPECT_LT(Took([&] { EXPECT_TRUE(client->WaitConnected(Long()).ok()); }), Scaled(2'000));
    EXPECT_EQ(client->boot_epoch(), epoch);
    // What the old run leased is gone with it, and only as a miss.
    EXPECT_FALSE(ReadAll(*client, found.lease, chain, 200)[0]);
    EXPECT_FALSE(client->Renew(found.lease, Long()));
    EXPECT_EQ(LookupAll(*client, chain).hits, 0U);
    EXPECT_EQ(PutAll(*client, chain, Contents(3, 200)).status[2], PutResult::kOk);
    found = LookupAll(*client, chain);
    EXPECT_EQ(ReadAll(*client, found.lease, chain, 200)[2], Content(200, 2));
  }
}

TEST_F(ClientFailover, AsksForAnUnknownPoolOnceASecond) {
  ScriptedAgent agent(AgentOptions());
  agent.SetPool("default/later");
  const auto client = MustCreate(OptionsFor({agent.unix_endpoint()}));
  const Chain chain = Keys(2);
  const Status status = client->WaitConnected(Ms(3'400));
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_NE(status.message().find("default/pool"), std::string::npos) << status.ToString();
  const std::uint64_t asked = agent.received(FrameOp::kHello);  // at 0, 1, 2 and 3 s
  EXPECT_GE(asked, 3U);
  EXPECT_LE(asked, 4U);
  EXPECT_EQ(agent.received(FrameOp::kError), 0U);  // an answer is no fault
  EXPECT_EQ(LookupAll(*client, chain).miss, Miss::kNoAgent);
  EXPECT_EQ(PutAll(*client, chain, Contents(2, 10)).status[1], PutResult::kDropped);
  EXPECT_EQ(client->counters().missed_no_agent, 2U);
  agent.SetPool("default/pool");
  EXPECT_LT(Took([&] { EXPECT_TRUE(client->WaitConnected(Long()).ok()); }), Scaled(2'000));
}

TEST_F(ClientFailover, SaysWhyItsTokenIsRefused) {
  ScriptedAgent agent(AgentOptions());
  ClientOptions options = OptionsFor({agent.tcp_endpoint()});
  options.token = "somebody's";
  const auto client = MustCreate(std::move(options));
  const Status status = client->WaitConnected(Scaled(300));
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated) << status.ToString();
}

TEST_F(ClientFailover, DialsAnAgentThatEndsEverySessionLessAndLess) {
  ScriptedAgent agent(AgentOptions());
  agent.On(FrameOp::kPing,
           [](const std::shared_ptr<ScriptedAgent::Exchange>& exchange) { exchange->HangUp(); });
  const auto client = MustCreate(OptionsFor({agent.unix_endpoint()}));
  Rest(Ms(2'000));
  // At 0, 50, 150, 350, 750 and 1550 ms.
  EXPECT_LE(agent.received(FrameOp::kHello), 8U);
  EXPECT_GE(agent.received(FrameOp::kHello), 3U);
  agent.On(FrameOp::kPing, nullptr);
  EXPECT_TRUE(client->WaitConnected(Long()).ok());
}

TEST_F(ClientFailover, PrefersALivingEndpointToOneThatEndsEverySession) {
  ScriptedAgent sick(AgentOptions("a.sock"));
  ScriptedAgent well(AgentOptions("b.sock"));
  sick.On(FrameOp::kPing,
          [](const std::shared_ptr<ScriptedAgent::Exchange>& exchange) { exchange->HangUp(); });
  const auto client = MustCreate(OptionsFor({sick.unix_endpoint(), well.unix_endpoint()}));
  EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
}

TEST_F(ClientFailover, TalksToNoAlienOnAnAgentsOldPort) {
  for (const std::string greeting : {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", ""}) {
    auto agent = std::make_unique<ScriptedAgent>(AgentOptions());
    const std::uint16_t old_port = agent->tcp_port();
    ScriptedAgent moved(AgentOptions("moved.sock"));
    const auto client = Connected({agent->tcp_endpoint(), moved.tcp_endpoint()});
    const Chain chain = Keys(2);
    PutAll(*client, chain, Contents(2, 100));
    ASSERT_EQ(LookupAll(*client, chain).endpoint, 0U);
    agent.reset();
    AlienListener alien(old_port, greeting);
    EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
    EXPECT_TRUE(Eventually([&] { return alien.taken() > 0; }));  // it was asked, and understood
    EXPECT_LT(UntilServedBy(*client, 1), Scaled(2'000));
    EXPECT_EQ(LookupAll(*client, chain).hits, 0U);
    EXPECT_EQ(PutAll(*client, chain, Contents(2, 100)).endpoint, 1U);
    EXPECT_EQ(ReadAll(*client, {}, chain, 100)[1], Content(100, 1));
  }
}

TEST_F(ClientFailover, KeepsWhatHangsOnTheOldSessionWhenItReturns) {
  ScriptedAgent second(AgentOptions("b.sock"));
  const auto client =
      Connected({"unix:" + path("a.sock"), second.unix_endpoint()});  // the first is not there yet
  const Chain chain = Keys(2);
  PutAll(*client, chain, Contents(2, 100));
  LookupOutcome found = LookupAll(*client, chain);
  ASSERT_EQ(found.hits, 2U);
  GetOutcome got = client->Get(found.lease, chain, 0, 1, {}, Long());
  ASSERT_TRUE(got.blocks[0]);
  ScriptedAgent first(AgentOptions("a.sock"));
  UntilServedBy(*client, 0);
  EXPECT_EQ(ReadAll(*client, found.lease, chain, 100)[1], Content(100, 1));
  EXPECT_EQ(client->Get(found.lease, chain, 0, 1, {}, Long()).endpoint, 1U);
  EXPECT_TRUE(client->Renew(found.lease, Long()));
  EXPECT_TRUE(got.blocks[0]->Verify());
  EXPECT_EQ(second.connections(), 1U);
  // With the last lease and view the old session goes.
  found = {};
  got = {};
  EXPECT_TRUE(Eventually([&] { return second.connections() == 0; }));
  EXPECT_EQ(LookupAll(*client, chain).endpoint, 0U);
}

}  // namespace
}  // namespace kvfabric
