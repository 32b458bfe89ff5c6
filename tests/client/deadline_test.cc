// Calls end by their budget and fail open, whatever the agent does.

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/client/client_fixture.h"
#include "tests/fakes/dead_ends.h"

namespace kvfabric {
namespace {

class ClientDeadline : public ClientTest {
 protected:
  static constexpr int kBudgetMs = 60;

  static void Ignore(ScriptedAgent& agent, FrameOp op) {
    agent.On(op, [](const std::shared_ptr<ScriptedAgent::Exchange>&) {});
  }
  // The least that `call` overran its budget by in five tries: a busy machine adds to some.
  static Ms LeastOverrun(const std::function<void(Ms budget)>& call) {
    const Ms budget = Scaled(kBudgetMs);
    Ms least = Long();
    for (int i = 0; i < 5; ++i) {
      const Ms took = Took([&] { call(budget); });
      EXPECT_GE(took, budget - Ms(1));
      least = std::min(least, took - budget);
    }
    return least;
  }
};

TEST_F(ClientDeadline, EndsEveryCallOfASilentAgentWithinMilliseconds) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(3);
  PutAll(*client, chain, Contents(3, 100));
  const Lease lease = LookupAll(*client, chain).lease;
  ASSERT_TRUE(lease);
  for (const FrameOp op : {FrameOp::kLookup, FrameOp::kGet, FrameOp::kPut, FrameOp::kDelete,
                           FrameOp::kRenew, FrameOp::kStat}) {
    Ignore(agent, op);
  }
  const Ms limit = Scaled(5);
  EXPECT_LE(LeastOverrun([&](Ms budget) {
              const LookupOutcome found = client->Lookup(chain, 0, 3, {}, budget);
              EXPECT_EQ(found.miss, Miss::kDeadline);
              EXPECT_EQ(found.hits, 0U);
            }),
            limit);
  EXPECT_LE(LeastOverrun([&](Ms budget) {
              EXPECT_FALSE(client->Get(lease, chain, 0, 3, {}, budget).blocks[0]);
            }),
            limit);
  EXPECT_LE(LeastOverrun([&](Ms budget) {
              EXPECT_EQ(client->Put(chain, 0, Blocks(Contents(3, 100)), {}, budget).status,
                        std::vector<PutResult>(3, PutResult::kDropped));
            }),
            limit);
  EXPECT_LE(
      LeastOverrun([&](Ms budget) { EXPECT_EQ(client->Delete(chain, 0, 3, {}, budget), 0U); }),
      limit);
  EXPECT_LE(LeastOverrun([&](Ms budget) { EXPECT_FALSE(client->Renew(lease, budget)); }), limit);
  EXPECT_LE(LeastOverrun([&](Ms budget) {
              EXPECT_EQ(client->Stat(budget).status().code(), StatusCode::kDeadlineExceeded);
            }),
            limit);
  const ClientCounters counters = client->counters();
  EXPECT_EQ(counters.missed_deadline, 5U * (3 + 3));
  EXPECT_EQ(counters.puts_dropped, 15U);
  EXPECT_EQ(counters.connects, 1U);  // it answers PINGs: a slow call does not end the session
}

TEST_F(ClientDeadline, BoundsWaitingForStagingMemory) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  agent.Hold(FrameOp::kPut);
  const Chain chain = Keys(1);
  const auto contents = Contents(1, std::size_t{3} << 20U);  // of 4 MiB
  ASSERT_EQ(client->Put(chain, 0, Blocks(contents), {}, Scaled(20)).status[0], PutResult::kDropped);
  EXPECT_LE(LeastOverrun([&](Ms budget) {
              EXPECT_EQ(client->Put(chain, 0, Blocks(contents), {}, budget).status[0],
                        PutResult::kDropped);
            }),
            Scaled(5));
  agent.AnswerHeld();
  EXPECT_EQ(client->Put(Keys(1, "other-"), 0, Blocks(contents), {}, Long()).status[0],
            PutResult::kOk);
}

TEST_F(ClientDeadline, BoundsWhatWaitsToBeSentToASlowAgent) {
  ScriptedAgent::Options options = AgentOptions();
  options.memfd_bytes = std::uint64_t{128} << 20U;
  ScriptedAgent agent(std::move(options));
  const auto client = Connected({agent.tcp_endpoint()});
  agent.Freeze();
  constexpr std::uint32_t kPuts = 64;
  const Chain chain = Keys(kPuts);
  const auto contents = Contents(1, std::size_t{1} << 20U);
  for (std::uint32_t i = 0; i < kPuts; ++i) {
    EXPECT_EQ(client->Put(chain, i, Blocks(contents), {}, Ms(2)).status[0], PutResult::kDropped);
  }
  agent.Thaw();
  EXPECT_TRUE(Eventually([&] {
    return client->Put(Keys(1, "late-"), 0, Blocks(contents), {}, Long()).status[0] ==
           PutResult::kOk;
  }));
  // What the socket's buffers took, and 4 MiB behind them; the rest was never queued.
  EXPECT_LT(agent.received(FrameOp::kPutInline), kPuts / 2);
}

TEST_F(ClientDeadline, MissesAndDropsAtOnceWithoutAnAgent) {
  const auto client = MustCreate(OptionsFor({"unix:" + path("nobody.sock")}));
  const Chain chain = Keys(4);
  const Ms took = Took([&] {
    EXPECT_EQ(client->Lookup(chain, 0, 4, {}, Long()).miss, Miss::kNoAgent);
    EXPECT_FALSE(client->Get({}, chain, 0, 4, {}, Long()).blocks[3]);
    EXPECT_EQ(client->Put(chain, 0, Blocks(Contents(4, 10)), {}, Long()).status,
              std::vector<PutResult>(4, PutResult::kDropped));
    EXPECT_EQ(client->Delete(chain, 0, 4, {}, Long()), 0U);
  });
  EXPECT_LT(took, Scaled(100));
  const ClientCounters counters = client->counters();
  EXPECT_EQ(counters.missed_no_agent, 8U);
  EXPECT_EQ(counters.puts_dropped, 4U);
  EXPECT_EQ(counters.lookups, 4U);
  EXPECT_EQ(counters.gets, 4U);
  EXPECT_EQ(counters.puts, 4U);
  EXPECT_EQ(counters.connects, 0U);
  const Status status = client->WaitConnected(Scaled(100));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("nobody.sock"), std::string::npos) << status.ToString();
  EXPECT_FALSE(client->Stat(Scaled(10)).ok());
}

TEST_F(ClientDeadline, ABlackholeCostsNoCallAnything) {
  const Blackhole blackhole;
  ScriptedAgent agent(AgentOptions());
  // A Service whose pods are gone: connects are neither answered nor refused.
  const auto client = MustCreate(OptionsFor({blackhole.endpoint(), agent.tcp_endpoint()}));
  const Chain chain = Keys(2);
  EXPECT_LT(Took([&] { LookupAll(*client, chain); }), Scaled(50));
  // The time-out to connect is 200 ms.
  EXPECT_LT(Took([&] { EXPECT_TRUE(client->WaitConnected(Long()).ok()); }), Scaled(1'000));
  EXPECT_EQ(PutAll(*client, chain, Contents(2, 100)).endpoint, 1U);
  EXPECT_EQ(LookupAll(*client, chain).hits, 2U);
}

TEST_F(ClientDeadline, TakesBudgetsOfAnySize) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(1);
  EXPECT_EQ(client->Put(chain, 0, Blocks(Contents(1, 9)), {}, Ms::max()).status[0], PutResult::kOk);
  EXPECT_EQ(client->Lookup(chain, 0, 1, {}, Ms::max()).hits, 1U);
  Ignore(agent, FrameOp::kLookup);
  EXPECT_EQ(client->Lookup(chain, 0, 1, {}, Ms(0)).miss, Miss::kDeadline);
  EXPECT_EQ(client->Lookup(chain, 0, 1, {}, Ms::min()).miss, Miss::kDeadline);
}

// An answer that comes about when its caller gives up must neither leak nor be used twice.
TEST_F(ClientDeadline, SurvivesAnswersThatRaceWithTheBudget) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(4);
  const auto contents = Contents(4, std::size_t{256} << 10U);
  PutAll(*client, chain, contents);
  std::mt19937 random(static_cast<std::uint32_t>(TestSeed()));
  for (const FrameOp op : {FrameOp::kLookup, FrameOp::kGet, FrameOp::kPut}) {
    agent.Delay(op, [&random] { return Ms(random() % 6); });
  }
  std::atomic<std::uint64_t> answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        const Ms budget(1 + (i + t) % 6);
        const LookupOutcome found = client->Lookup(chain, 0, 4, {}, budget);
        const GetOutcome got = client->Get({}, chain, 0, 4, {}, budget);
        const PutOutcome put = client->Put(chain, 0, Blocks(contents), {}, budget);
        answered += (found.hits == 4) + (got.blocks[3].has_value()) +
                    (put.status[3] == PutResult::kAlreadyExists);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const FrameOp op : {FrameOp::kLookup, FrameOp::kGet, FrameOp::kPut}) agent.On(op, nullptr);
  EXPECT_TRUE(Eventually([&] { return agent.leases() == 0; })) << agent.leases();
  // All staging memory is free again.
  EXPECT_EQ(client->Put(Keys(1, "all-"), 0, Blocks(Contents(1, std::size_t{4} << 20U)), {}, Long())
                .status[0],
            PutResult::kOk);
  EXPECT_GT(answered.load(), 0U);
  EXPECT_EQ(client->counters().corrupt, 0U);
}

}  // namespace
}  // namespace kvfabric
