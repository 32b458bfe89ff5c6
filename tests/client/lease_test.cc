// What hangs on a session: leases, mapped memory, staging memory.

#include <atomic>
#include <thread>

#include "tests/client/client_fixture.h"
#include "transport/local_messages.h"

namespace kvfabric {
namespace {

class ClientLease : public ClientTest {};

TEST_F(ClientLease, GoesBackWithTheLastHandle) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(3);
  PutAll(*client, chain, Contents(3, 100));
  Lease copy;
  {
    const LookupOutcome found = LookupAll(*client, chain);
    ASSERT_TRUE(found.lease);
    copy = found.lease;
  }
  EXPECT_EQ(agent.leases(), 1U);
  GetOutcome got = client->Get(copy, chain, 0, 3, {}, Long());
  copy.Release();
  EXPECT_EQ(ReadAll(*client, {}, chain, 100)[0], Content(100, 0));  // takes its own, gives it back
  EXPECT_TRUE(Eventually([&] { return agent.leases() == 1; }));     // the views hold the first
  EXPECT_TRUE(got.blocks[2]->Verify());
  got = {};
  EXPECT_TRUE(Eventually([&] { return agent.leases() == 0; }));
}

TEST_F(ClientLease, OfAGetWithoutOneGoesWithItsViews) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(2);
  PutAll(*client, chain, Contents(2, 100));
  GetOutcome got = client->Get({}, chain, 0, 2, {}, Long());
  EXPECT_EQ(agent.leases(), 1U);
  got.blocks[0].reset();
  EXPECT_TRUE(client->Stat(Long()).ok());  // what was sent before it has arrived
  EXPECT_EQ(agent.leases(), 1U);
  got.blocks[1].reset();
  EXPECT_TRUE(Eventually([&] { return agent.leases() == 0; }));
}

TEST_F(ClientLease, OfAGetWhoseOwnHasEndedIsGivenBack) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(1);
  PutAll(*client, chain, Contents(1, 100));
  const LookupOutcome found = LookupAll(*client, chain);
  ASSERT_TRUE(found.lease);
  agent.On(FrameOp::kGet, [](const std::shared_ptr<ScriptedAgent::Exchange>& exchange) {
    wire::GetReply reply;
    reply.lease_id = 4'711;  // not the one it was asked with
    reply.entries.resize(1);
    exchange->Reply(wire::Encode(reply));
  });
  EXPECT_FALSE(client->Get(found.lease, chain, 0, 1, {}, Long()).blocks[0]);
  EXPECT_TRUE(Eventually([&] { return agent.received(FrameOp::kRelease) == 1; }));
}

TEST_F(ClientLease, OfALateAnswerIsGivenBack) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(2);
  PutAll(*client, chain, Contents(2, 100));
  for (const FrameOp op : {FrameOp::kLookup, FrameOp::kGet}) {
    const std::uint64_t released = agent.received(FrameOp::kRelease);
    agent.Hold(op);
    if (op == FrameOp::kLookup) {
      EXPECT_EQ(client->Lookup(chain, 0, 2, {}, Scaled(20)).miss, Miss::kDeadline);
    } else {
      EXPECT_FALSE(client->Get({}, chain, 0, 2, {}, Scaled(20)).blocks[0]);
    }
    agent.AnswerHeld();
    EXPECT_TRUE(Eventually([&] { return agent.received(FrameOp::kRelease) == released + 1; }));
    EXPECT_EQ(agent.leases(), 0U);
  }
}

TEST_F(ClientLease, GoesWithTheClient) {
  ScriptedAgent agent(AgentOptions());
  const Chain chain = Keys(1);
  LookupOutcome found;
  GetOutcome got;
  {
    const auto client = Connected({agent.unix_endpoint()});
    PutAll(*client, chain, Contents(1, 5'000));
    found = LookupAll(*client, chain);
    got = client->Get(found.lease, chain, 0, 1, {}, Long());
    ASSERT_TRUE(got.blocks[0]);
    agent.CloseMemfd(agent.memfd_ids().back());  // so that the view's end would tell the agent
    EXPECT_TRUE(client->Stat(Long()).ok());
  }
  EXPECT_TRUE(Eventually([&] { return agent.connections() == 0; }));
  EXPECT_EQ(agent.leases(), 0U);
  // Handles outlive it: memory stays mapped, and letting go of them reaches no loop.
  EXPECT_EQ(AsText(got.blocks[0]->bytes()), Content(5'000, 0));
  const Lease copy = found.lease;
  got = {};
  found = {};
  EXPECT_EQ(agent.unmapped(agent.memfd_ids().back()), 0U);
}

TEST_F(ClientLease, IsRenewedWhileItLives) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.tcp_endpoint()});
  const Chain chain = Keys(1);
  PutAll(*client, chain, Contents(1, 10));
  const LookupOutcome found = LookupAll(*client, chain);
  EXPECT_TRUE(client->Renew(found.lease, Long()));
  EXPECT_FALSE(client->Renew(Lease(), Long()));
  agent.CloseConnections();
  EXPECT_TRUE(Eventually([&] { return !client->Renew(found.lease, Long()); }));
}

class ClientMemory : public ClientTest {};

TEST_F(ClientMemory, IsUnmappedOnlyAfterTheLastView) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(2);
  PutAll(*client, chain, Contents(2, 3'000));
  GetOutcome got = client->Get({}, chain, 0, 2, {}, Long());
  ASSERT_TRUE(got.blocks[1]);
  const std::uint64_t used = agent.memfd_ids().back();
  const std::uint64_t unused = agent.memfd_ids().front();
  agent.CloseMemfd(unused);
  EXPECT_TRUE(Eventually([&] { return agent.unmapped(unused) == 1; }));
  agent.CloseMemfd(used);
  EXPECT_TRUE(client->Stat(Long()).ok());  // the client has heard of it
  EXPECT_EQ(AsText(got.blocks[0]->bytes()), Content(3'000, 0));
  EXPECT_FALSE(ReadAll(*client, {}, chain, 3'000)[0]);  // a miss from now on
  got.blocks[0].reset();
  EXPECT_TRUE(client->Stat(Long()).ok());
  EXPECT_EQ(agent.unmapped(used), 0U);
  got.blocks[1].reset();
  EXPECT_TRUE(Eventually([&] { return agent.unmapped(used) == 1; }));
  agent.CloseMemfd(used);  // of one it has not: it says so at once
  EXPECT_TRUE(Eventually([&] { return agent.unmapped(used) == 2; }));
}

TEST_F(ClientMemory, ComesInAnyNumberAndAtAnyTime) {
  ScriptedAgent::Options options = AgentOptions();
  options.memfds = 450;  // a frame carries 200 descriptors
  options.memfd_bytes = 4'096;
  ScriptedAgent agent(std::move(options));
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(450);
  const auto contents = Contents(450, 4'000);
  EXPECT_EQ(PutAll(*client, chain, contents).status.back(), PutResult::kOk);
  auto read = ReadAll(*client, {}, chain, 4'000);
  EXPECT_EQ(read.front(), contents.front());
  EXPECT_EQ(read.back(), contents.back());
  EXPECT_EQ(PutAll(*client, Keys(1, "more-"), Contents(1, 4'000)).status[0], PutResult::kNoSpace);
  agent.AddMemfds(250);
  const Chain more = Keys(250, "new-");
  EXPECT_EQ(PutAll(*client, more, Contents(250, 4'000, 900)).status.back(), PutResult::kOk);
  read = ReadAll(*client, {}, more, 4'000);
  EXPECT_EQ(read.front(), Content(4'000, 900));
  EXPECT_EQ(read.back(), Content(4'000, 900 + 249));
  EXPECT_EQ(client->counters().connects, 1U);
}

class ClientStaging : public ClientTest {};

TEST_F(ClientStaging, IsNotWrittenAgainWhileAnUnansweredPutMayReadIt) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  agent.Hold(FrameOp::kPut);
  const Chain slow = Keys(1, "slow-");
  const std::string content = Content(std::size_t{1} << 20U, 77);
  EXPECT_EQ(client->Put(slow, 0, Blocks({content}), {}, Scaled(20)).status[0], PutResult::kDropped);
  // Others go through all the memory there is, again and again.
  const Chain others = Keys(20, "other-");
  for (std::uint32_t i = 0; i < 20; ++i) {
    client->Put(others, i, Blocks({Content(std::size_t{1} << 20U, i)}), {}, Ms(1));
  }
  ASSERT_GE(agent.held(), 1U);
  agent.AnswerHeld();  // now the agent copies
  EXPECT_TRUE(client->Stat(Long()).ok());
  EXPECT_EQ(ReadAll(*client, {}, slow, content.size())[0], content);
}

// An agent that was stopped in the middle of a PUT, given up, and goes on.
TEST_F(ClientStaging, IsNotWrittenAgainWhenItsSessionWasLost) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  agent.Hold(FrameOp::kPut);
  const Chain slow = Keys(1, "slow-");
  const std::string content = Content(std::size_t{3} << 20U, 77);
  EXPECT_EQ(client->Put(slow, 0, Blocks({content}), {}, Scaled(20)).status[0], PutResult::kDropped);
  const auto others = Contents(1, std::size_t{3} << 20U);
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      ++waiting;
      client->Put(Keys(1, "waits-"), 0, Blocks(others), {}, Long());
    });
  }
  EXPECT_TRUE(Eventually([&] { return waiting == 3; }));
  Rest(Scaled(100));  // into the wait for the memory
  agent.CloseConnections();
  for (std::thread& thread : threads) thread.join();
  agent.AnswerHeld();  // copies
  EXPECT_TRUE(Eventually([&] { return LookupAll(*client, slow).hits == 1; }));
  EXPECT_EQ(ReadAll(*client, {}, slow, content.size())[0], content);
}

TEST_F(ClientStaging, IsOverWithItsSession) {
  auto agent = std::make_unique<ScriptedAgent>(AgentOptions());
  const auto client = Connected({agent->unix_endpoint()});
  agent->Hold(FrameOp::kPut);
  const Chain chain = Keys(2);
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {  // one has the memory, the others wait for it
    threads.emplace_back([&] {
      ++waiting;
      EXPECT_EQ(
          client->Put(chain, 0, Blocks(Contents(1, std::size_t{3} << 20U)), {}, Long()).status[0],
          PutResult::kDropped);
    });
  }
  EXPECT_TRUE(Eventually([&] { return waiting == 3 && agent->held() == 1; }));
  const Ms took = Took([&] {
    agent.reset();
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_LT(took, Scaled(1'000));
}

}  // namespace
}  // namespace kvfabric
