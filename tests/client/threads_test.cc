// Many threads on one client, and clients that go while calls are under way.

#include <atomic>
#include <random>
#include <thread>

#include "tests/client/client_fixture.h"

namespace kvfabric {
namespace {

class ClientThreads : public ClientTest {
 protected:
  static constexpr std::size_t kThreads = 32;
  static constexpr std::size_t kSize = 3'000;
  static constexpr std::uint32_t kKeys = 64;

  // What key i of thread-shared chains holds; whoever puts it first, it is this.
  static std::string ContentOf(std::uint32_t key) { return Content(kSize, 500 + key); }

  static void Work(Client& client, const Chain& chain, std::uint64_t seed, int rounds,
                   std::atomic<std::uint64_t>& wrong, std::atomic<std::uint64_t>& right) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < rounds; ++i) {
      const auto first = static_cast<std::uint32_t>(random() % kKeys);
      const auto count = static_cast<std::uint32_t>(1 + random() % 8);
      const auto kept = std::min(count, kKeys - first);
      std::vector<std::string> contents;
      for (std::uint32_t k = 0; k < kept; ++k) contents.push_back(ContentOf(first + k));
      client.Put(chain, first, Blocks(contents), {}, Scaled(2'000));
      const LookupOutcome found = client.Lookup(chain, first, count, {}, Scaled(2'000));
      std::vector<std::string> buffers(kept, std::string(kSize, '\0'));
      std::vector<MutableByteSpan> into;
      for (std::string& buffer : buffers) {
        into.emplace_back(reinterpret_cast<std::byte*>(buffer.data()), buffer.size());
      }
      const std::vector<bool> read = client.Read(random() % 2 == 0 ? found.lease : Lease(), chain,
                                                 first, into, {}, Scaled(2'000));
      for (std::uint32_t k = 0; k < kept; ++k) {
        if (read[k]) ++(buffers[k] == ContentOf(first + k) ? right : wrong);
      }
      if (random() % 16 == 0) client.Delete(chain, first, 1, {}, Scaled(2'000));
    }
  }
};

TEST_F(ClientThreads, ShareOneClient) {
  const std::uint64_t seed = TestSeed();
  for (const bool local : {true, false}) {
    ScriptedAgent agent(AgentOptions());
    const auto client = Connected({local ? agent.unix_endpoint() : agent.tcp_endpoint()});
    const Chain chain = Keys(kKeys);
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> right{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { Work(*client, chain, seed + t, 12, wrong, right); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0U);
    EXPECT_GT(right, 100U);
    EXPECT_EQ(client->counters().corrupt, 0U);
    EXPECT_EQ(client->counters().connects, 1U);
    EXPECT_TRUE(Eventually([&] { return agent.leases() == 0; }));
  }
}

TEST_F(ClientThreads, GoOnWhileSessionsEnd) {
  const std::uint64_t seed = TestSeed();
  ScriptedAgent first(AgentOptions("a.sock"));
  ScriptedAgent second(AgentOptions("b.sock"));
  const auto client = Connected({first.unix_endpoint(), second.unix_endpoint()});
  const Chain chain = Keys(kKeys);
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> right{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t round = 0; !stop; ++round) {
        Work(*client, chain, seed + t + 100 * round, 4, wrong, right);
      }
    });
  }
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t before = right;
    EXPECT_TRUE(Eventually([&] { return right > before + 20; }));
    (i % 3 == 2 ? second : first).CloseConnections();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(client->counters().corrupt, 0U);
  EXPECT_GE(client->counters().connects, 2U);
}

TEST_F(ClientThreads, ReturnAtOnceWhenTheirClientGoes) {
  ScriptedAgent agent(AgentOptions());
  for (const FrameOp op : {FrameOp::kLookup, FrameOp::kGet, FrameOp::kPut, FrameOp::kStat}) {
    agent.On(op, [](const std::shared_ptr<ScriptedAgent::Exchange>&) {});
  }
  auto client = Connected({agent.unix_endpoint()});
  Client& borrowed = *client;
  const Chain chain = Keys(2);
  const auto big = Contents(1, std::size_t{3} << 20U);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(
        [&] { EXPECT_EQ(borrowed.Lookup(chain, 0, 2, {}, Long() * 6).miss, Miss::kNoAgent); });
    threads.emplace_back(
        [&] { EXPECT_FALSE(borrowed.Get({}, chain, 0, 2, {}, Long() * 6).blocks[0]); });
    threads.emplace_back([&] {  // the second waits for staging memory
      EXPECT_EQ(borrowed.Put(chain, 0, Blocks(big), {}, Long() * 6).status[0], PutResult::kDropped);
    });
    threads.emplace_back([&] { EXPECT_FALSE(borrowed.Stat(Long() * 6).ok()); });
  }
  EXPECT_TRUE(Eventually([&] {
    return agent.received(FrameOp::kLookup) == 2 && agent.received(FrameOp::kGet) == 2 &&
           agent.received(FrameOp::kPut) == 1 && agent.received(FrameOp::kStat) == 2;
  }));
  const Ms took = Took([&] {
    client.reset();
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_LT(took, Scaled(1'000));
}

TEST_F(ClientThreads, WaitingForAnAgentReturnWhenTheirClientGoes) {
  auto client = MustCreate(OptionsFor({"unix:" + path("nobody.sock")}));
  Client& borrowed = *client;
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      ++waiting;
      EXPECT_FALSE(borrowed.WaitConnected(Long() * 6).ok());
    });
  }
  EXPECT_TRUE(Eventually([&] { return waiting == 3; }));
  Rest(Ms(20));  // into the wait itself
  const Ms took = Took([&] {
    client.reset();
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_LT(took, Scaled(1'000));
}

TEST_F(ClientThreads, LetGoOfLeasesAndViewsWhileTheClientGoes) {
  ScriptedAgent agent(AgentOptions());
  const Chain chain = Keys(8);
  for (int round = 0; round < 20; ++round) {
    auto client = Connected({agent.unix_endpoint()});
    PutAll(*client, chain, Contents(8, 100));
    std::vector<LookupOutcome> found;
    std::vector<GetOutcome> got;
    for (int i = 0; i < 20; ++i) {
      found.push_back(LookupAll(*client, chain));
      got.push_back(client->Get(found.back().lease, chain, 0, 8, {}, Long()));
    }
    std::thread drops([&] {
      while (!found.empty()) {
        found.pop_back();
        got.pop_back();
      }
    });
    client.reset();
    drops.join();
  }
  EXPECT_TRUE(Eventually([&] { return agent.connections() == 0 && agent.leases() == 0; }));
}

TEST_F(ClientThreads, ComeAndGoWithManyClients) {
  ScriptedAgent agent(AgentOptions());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const auto client =
            MustCreate(OptionsFor({t % 2 == 0 ? agent.unix_endpoint() : agent.tcp_endpoint()}));
        if (i % 3 == 0) continue;  // goes while it connects
        EXPECT_TRUE(client->WaitConnected(Long()).ok());
        LookupAll(*client, Keys(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return agent.connections() == 0; }));
}

}  // namespace
}  // namespace kvfabric
