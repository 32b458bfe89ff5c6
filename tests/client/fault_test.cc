// Agents that say what no agent may say: a session ends, the client does not.

#include <random>

#include "tests/client/client_fixture.h"
#include "transport/frame_header.h"
#include "transport/local_messages.h"

namespace kvfabric {
namespace {

using Exchange = std::shared_ptr<ScriptedAgent::Exchange>;

FrameHeader ReplyTo(const FrameHeader& request) {
  FrameHeader header;
  header.op = request.op;
  header.flags = kFrameReply;
  header.request_id = request.request_id;
  header.boot_epoch = 1'000;
  return header;
}

// A whole frame; with `announced` other lengths than it has.
std::string FrameBytes(const FrameHeader& header, const std::string& body,
                       const std::string& payload = {},
                       const std::function<void(FrameHeader&)>& announced = {}) {
  FrameHeader whole = header;
  whole.body_bytes = static_cast<std::uint32_t>(body.size());
  whole.payload_bytes = static_cast<std::uint32_t>(payload.size());
  whole.body_hash = FrameBodyHash(AsBytes(body));
  if (announced) announced(whole);
  const auto head = EncodeFrameHeader(whole);
  return std::string(AsText(head)) + body + payload;
}

wire::GetReply OneEntry(wire::GetEntry entry) {
  wire::GetReply reply;
  reply.entries.push_back(std::move(entry));
  return reply;
}

wire::GetEntry Inline(std::uint64_t length, std::uint64_t checksum = 1) {
  wire::GetEntry entry;
  entry.place = wire::GetPlace::kInline;
  entry.length = length;
  entry.checksum = checksum;
  return entry;
}

wire::GetEntry InMemfd(std::uint64_t id, std::uint64_t offset, std::uint64_t length) {
  wire::GetEntry entry;
  entry.place = wire::GetPlace::kMemfd;
  entry.memfd_id = id;
  entry.offset = offset;
  entry.length = length;
  entry.checksum = 1;
  return entry;
}

struct Fault {
  const char* name;
  std::function<void(const Exchange&)> answer;
  bool ends_session = true;
};

class ClientFault : public ClientTest {
 protected:
  // Each fault once, as an answer to `op` over both transports; afterwards all is well again.
  void Check(FrameOp op, bool local, const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) {
      SCOPED_TRACE(fault.name);
      ScriptedAgent agent(AgentOptions());
      const auto client = Connected({local ? agent.unix_endpoint() : agent.tcp_endpoint()});
      const Chain chain = Keys(2);
      ASSERT_EQ(PutAll(*client, chain, Contents(2, 500)).status[1], PutResult::kOk);
      bool once = false;
      agent.On(op, [&](const Exchange& exchange) {
        if (std::exchange(once, true)) {
          exchange->AnswerProperly();
        } else {
          fault.answer(exchange);
        }
      });
      const Ms took = Took([&] {
        if (op == FrameOp::kLookup) {
          EXPECT_EQ(LookupAll(*client, chain).hits, 0U);
        } else {
          EXPECT_FALSE(ReadAll(*client, {}, chain, 500)[0]);
        }
      });
      EXPECT_LT(took, Scaled(2'000));
      EXPECT_TRUE(
          Eventually([&] { return client->Lookup(chain, 0, 2, {}, Scaled(500)).hits == 2; }));
      const auto read = ReadAll(*client, {}, chain, 500);
      EXPECT_EQ(read[0], Content(500, 0));
      EXPECT_EQ(read[1], Content(500, 1));
      EXPECT_EQ(client->counters().connects, fault.ends_session ? 2U : 1U);
      agent.On(op, nullptr);
    }
  }
};

using NamedAnswers = std::vector<std::pair<const char*, std::function<void(const Exchange&)>>>;

NamedAnswers BrokenFrames() {
  const std::string body = wire::Encode(wire::LookupReply{});
  return {
      {"garbage", [](const Exchange& e) { e->WriteRaw(std::string(200, '\x5A')); }},
      {"text",
       [](const Exchange& e) { e->WriteRaw("HTTP/1.1 500 Oops\r\n\r\n" + std::string(100, ' ')); }},
      {"end", [](const Exchange& e) { e->HangUp(); }},
      {"half a frame, then the end",
       [body](const Exchange& e) {
         e->WriteRaw(FrameBytes(ReplyTo(e->header), body).substr(0, 70));
         e->HangUp();
       }},
      {"half a frame, then nothing",
       [body](const Exchange& e) {
         e->WriteRaw(FrameBytes(ReplyTo(e->header), body).substr(0, 70));
       }},
      {"a body over its limit",
       [body](const Exchange& e) {
         e->WriteRaw(FrameBytes(ReplyTo(e->header), body, {},
                                [](FrameHeader& h) { h.body_bytes = 2U << 20U; }));
       }},
      {"a payload over its limit",
       [body](const Exchange& e) {
         e->WriteRaw(FrameBytes(ReplyTo(e->header), body, {},
                                [](FrameHeader& h) { h.payload_bytes = 0xFFFFFFFFU; }));
       }},
      {"descriptors that did not come",
       [body](const Exchange& e) {
         e->WriteRaw(
             FrameBytes(ReplyTo(e->header), body, {}, [](FrameHeader& h) { h.descriptors = 3; }));
       }},
      {"a broken body",
       [body](const Exchange& e) {
         e->WriteRaw(
             FrameBytes(ReplyTo(e->header), body, {}, [](FrameHeader& h) { h.body_hash ^= 1; }));
       }},
      {"a frame of another version",
       [body](const Exchange& e) {
         std::string bytes = FrameBytes(ReplyTo(e->header), body);
         bytes[4] = 9;
         e->WriteRaw(bytes);
       }},
  };
}

NamedAnswers FramesOutOfPlace() {
  return {
      {"an error frame",
       [](const Exchange& e) {
         FrameHeader header = ReplyTo(e->header);
         header.op = FrameOp::kError;
         header.status = StatusCode::kInternal;
         e->WriteRaw(FrameBytes(header, "broken inside"));
       }},
      {"an answer to another operation",
       [](const Exchange& e) {
         FrameHeader header = ReplyTo(e->header);
         header.op = FrameOp::kStat;
         e->WriteRaw(FrameBytes(header, wire::Encode(wire::LookupReply{2, {}, 9, 1, 2})));
       }},
      {"a second answer to HELLO",
       [](const Exchange& e) {
         FrameHeader header = ReplyTo(e->header);
         header.op = FrameOp::kHello;
         header.request_id = 1;
         e->WriteRaw(FrameBytes(header, wire::Encode(wire::HelloReply{})));
       }},
      {"an answer to no STAGING",
       [](const Exchange& e) {
         FrameHeader header = ReplyTo(e->header);
         header.op = FrameOp::kStaging;
         header.request_id = 2;
         e->WriteRaw(FrameBytes(header, {}));
       }},
      {"memory without descriptors",
       [](const Exchange& e) {
         FrameHeader header;
         header.op = FrameOp::kNewMemfd;
         e->WriteRaw(FrameBytes(header, wire::Encode(wire::NewMemfd{{{9, 4'096}}})));
       }},
      {"nonsense about memory",
       [](const Exchange& e) {
         FrameHeader header;
         header.op = FrameOp::kCloseMemfd;
         e->WriteRaw(FrameBytes(header, "x"));
       }},
      {"an answer nobody can read", [](const Exchange& e) { e->Reply("nonsense"); }},
  };
}

// What ends a session whatever was asked.
void AddTo(std::vector<Fault>& faults) {
  for (auto& [name, answer] : BrokenFrames()) faults.push_back({name, answer});
  for (auto& [name, answer] : FramesOutOfPlace()) faults.push_back({name, answer});
}

TEST_F(ClientFault, BrokenAnswersToALookupEndTheSession) {
  for (const bool local : {true, false}) {
    std::vector<Fault> faults;
    AddTo(faults);
    Check(FrameOp::kLookup, local, faults);
  }
}

TEST_F(ClientFault, BrokenAnswersToALocalGetAreMisses) {
  std::vector<Fault> faults;
  AddTo(faults);
  const auto says = [](wire::GetReply reply) {
    return [body = wire::Encode(reply)](const Exchange& e) { e->Reply(body); };
  };
  faults.push_back({"memory it has not", says(OneEntry(InMemfd(99, 0, 500))), false});
  faults.push_back({"beyond the memory's end", says(OneEntry(InMemfd(1, 8U << 20U, 500))), false});
  faults.push_back({"more than the memory", says(OneEntry(InMemfd(1, 0, 1ULL << 62U))), false});
  faults.push_back({"a place that wraps", says(OneEntry(InMemfd(1, ~0ULL - 9, 500))), false});
  faults.push_back({"bytes of nobody", says(OneEntry(InMemfd(1, 0, 500))), false});
  faults.push_back({"an inline block without bytes", says(OneEntry(Inline(500))), false});
  faults.push_back({"a miss of a length that is not", says(OneEntry(InMemfd(1, 0, 0))), false});
  wire::GetReply far_off = OneEntry(InMemfd(1, 0, 500));
  far_off.first_index = 0xFFFFFFFFU;
  faults.push_back({"entries of other keys", says(far_off), false});
  faults.push_back({"no entries", says(wire::GetReply{}), false});
  faults.push_back({"a payload on a Unix socket", [](const Exchange& e) {
                      e->Reply(wire::Encode(OneEntry(Inline(500))), 0, std::string(500, 'p'));
                    }});
  faults.push_back({"parts without end", [](const Exchange& e) {
                      for (int i = 0; i < 50; ++i) {
                        e->Reply(wire::Encode(wire::GetReply{}), kFrameMore);
                      }
                    }});
  Check(FrameOp::kGet, true, faults);
}

TEST_F(ClientFault, BrokenAnswersToAGetOverTcpAreMisses) {
  std::vector<Fault> faults;
  AddTo(faults);
  const auto says = [](wire::GetReply reply, std::size_t payload) {
    return [body = wire::Encode(reply), payload](const Exchange& e) {
      e->Reply(body, 0, std::string(payload, 'p'));
    };
  };
  faults.push_back({"blocks beyond the payload", says(OneEntry(Inline(501)), 500)});
  faults.push_back({"a block of 2^62 bytes", says(OneEntry(Inline(1ULL << 62U)), 500)});
  faults.push_back({"payload beyond the blocks", says(OneEntry(Inline(499)), 500)});
  faults.push_back({"payload without blocks", says(wire::GetReply{}, 500)});
  faults.push_back({"a block without payload", says(OneEntry(Inline(500)), 0)});
  wire::GetReply wrapping = OneEntry(Inline(~0ULL - 99));
  wrapping.entries.push_back(Inline(600));
  faults.push_back({"lengths that wrap", says(wrapping, 500)});
  wire::GetReply empty = OneEntry(Inline(0));
  empty.entries.push_back(Inline(500));
  faults.push_back({"an empty block", says(empty, 500)});
  faults.push_back({"memory over TCP", says(OneEntry(InMemfd(1, 0, 500)), 0), false});
  faults.push_back({"bytes of another checksum", says(OneEntry(Inline(500)), 500), false});
  faults.push_back({"half a payload, then the end", [](const Exchange& e) {
                      const std::string frame =
                          FrameBytes(ReplyTo(e->header), wire::Encode(OneEntry(Inline(500))),
                                     std::string(500, 'p'));
                      e->WriteRaw(frame.substr(0, frame.size() - 100));
                      e->HangUp();
                    }});
  faults.push_back({"half a payload, then nothing", [](const Exchange& e) {
                      const std::string frame =
                          FrameBytes(ReplyTo(e->header), wire::Encode(OneEntry(Inline(500))),
                                     std::string(500, 'p'));
                      e->WriteRaw(frame.substr(0, frame.size() - 100));
                    }});
  Check(FrameOp::kGet, false, faults);
}

// The budget ends when the answer's header is there and its payload is not.
TEST_F(ClientFault, HalfAnAnswerIsGivenBackWhenTheRestComesLate) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.tcp_endpoint()});
  const Chain chain = Keys(1);
  wire::GetReply reply = OneEntry(Inline(500));
  reply.lease_id = 42;
  Exchange asked;
  std::string frame;
  agent.On(FrameOp::kGet, [&](const Exchange& exchange) {
    asked = exchange;
    frame = FrameBytes(ReplyTo(exchange->header), wire::Encode(reply), std::string(500, 'p'));
    exchange->WriteRaw(frame.substr(0, frame.size() - 100));
  });
  // An answered PING would land in the middle of the block.
  agent.Hold(FrameOp::kPing);
  EXPECT_FALSE(client->Get({}, chain, 0, 1, {}, Scaled(50)).blocks[0]);
  ASSERT_TRUE(Eventually([&] { return agent.received(FrameOp::kGet) == 1; }));
  EXPECT_EQ(client->counters().missed_deadline, 1U);
  EXPECT_EQ(agent.received(FrameOp::kRelease), 0U);
  asked->WriteRaw(frame.substr(frame.size() - 100));
  agent.AnswerHeld();
  EXPECT_TRUE(Eventually([&] { return agent.received(FrameOp::kRelease) == 1; }));
  EXPECT_EQ(client->counters().connects, 1U);
  agent.On(FrameOp::kGet, nullptr);
}

TEST_F(ClientFault, AnswersThatComeTwiceEndTheSession) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(1);
  PutAll(*client, chain, Contents(1, 10));
  agent.On(FrameOp::kLookup, [](const Exchange& exchange) {
    for (int i = 0; i < 20; ++i) exchange->AnswerProperly();
  });
  for (int i = 0; i < 50; ++i) {
    const LookupOutcome found = client->Lookup(chain, 0, 1, {}, Scaled(100));
    EXPECT_LE(found.hits, 1U);
  }
  agent.On(FrameOp::kLookup, nullptr);
  EXPECT_TRUE(Eventually([&] { return client->Lookup(chain, 0, 1, {}, Long()).hits == 1; }));
}

TEST_F(ClientFault, CorruptBytesAreAMissAndCounted) {
  for (const bool local : {true, false}) {
    ScriptedAgent agent(AgentOptions());
    const auto client = Connected({local ? agent.unix_endpoint() : agent.tcp_endpoint()});
    const Chain chain = Keys(3);
    PutAll(*client, chain, Contents(3, 300'000));  // more than a piece
    agent.CorruptBlocks();
    const auto read = ReadAll(*client, {}, chain, 300'000);
    EXPECT_FALSE(read[0] || read[1] || read[2]);
    EXPECT_EQ(client->counters().corrupt, 3U);
    const GetOutcome got = client->Get({}, chain, 0, 1, {}, Long());
    if (local) {
      ASSERT_TRUE(got.blocks[0]);  // in place: its reader verifies
      EXPECT_FALSE(got.blocks[0]->Verify());
    } else {
      EXPECT_FALSE(got.blocks[0]);
    }
    agent.CorruptBlocks();  // changes them back
    EXPECT_EQ(ReadAll(*client, {}, chain, 300'000)[2], Content(300'000, 2));
    EXPECT_EQ(client->counters().connects, 1U);
  }
}

TEST_F(ClientFault, WrongAnswersToHelloAreNoSession) {
  wire::HelloReply other_version;
  other_version.version = 9;
  wire::HelloReply without_descriptors;
  without_descriptors.memfds = {{1, 4'096}};
  const std::vector<std::pair<std::function<void(const Exchange&)>, StatusCode>> answers = {
      {[&](const Exchange& e) { e->Reply(wire::Encode(other_version)); },
       StatusCode::kUnimplemented},
      {[&](const Exchange& e) { e->Reply(wire::Encode(without_descriptors)); },
       StatusCode::kInvalidArgument},
      {[](const Exchange& e) { e->Reply("?"); }, StatusCode::kInvalidArgument},
      {[](const Exchange& e) { e->Fail(Unimplemented("HELLO: version 1")); },
       StatusCode::kUnimplemented},
      {[](const Exchange& e) { e->WriteRaw(std::string(64, '\0')); }, StatusCode::kInvalidArgument},
      {[](const Exchange& e) { e->HangUp(); }, StatusCode::kUnavailable},
      {[](const Exchange&) {}, StatusCode::kDeadlineExceeded},
  };
  for (std::size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(i);
    ScriptedAgent agent(AgentOptions());
    agent.On(FrameOp::kHello, answers[i].first);
    const auto client = MustCreate(OptionsFor({agent.unix_endpoint()}));
    const auto code = answers[i].second;
    EXPECT_TRUE(Eventually([&] { return client->WaitConnected(Ms(1)).code() == code; }))
        << client->WaitConnected(Ms(1)).ToString();
    EXPECT_EQ(LookupAll(*client, Keys(1)).miss, Miss::kNoAgent);
  }
}

// The agent is there and says that the request cannot be: not the same as no agent.
TEST_F(ClientFault, ARefusedRequestIsToldApart) {
  ScriptedAgent agent(AgentOptions());
  const auto client = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(3);
  const auto refuse = [](const Exchange& exchange) { exchange->Fail(InvalidArgument("no")); };
  agent.On(FrameOp::kLookup, refuse);
  EXPECT_EQ(LookupAll(*client, chain).miss, Miss::kRefused);
  agent.On(FrameOp::kGet, refuse);
  EXPECT_FALSE(client->Get({}, chain, 0, 2, {}, Long()).blocks[0]);
  const std::vector<Lane> lanes(65);
  EXPECT_EQ(client->Lookup(chain, 0, 1, lanes, Long()).miss, Miss::kRefused);
  const ClientCounters counters = client->counters();
  EXPECT_EQ(counters.missed_refused, 3U + 2U + 1U);
  EXPECT_EQ(counters.missed_no_agent, 0U);
  EXPECT_EQ(counters.connects, 1U);
}

TEST_F(ClientFault, RefusedStagingIsNoSession) {
  ScriptedAgent agent(AgentOptions());
  agent.On(FrameOp::kStaging, [](const Exchange& exchange) {
    exchange->Fail(ResourceExhausted("staging: map 4194304 bytes (limit 1048576)"));
  });
  const auto client = MustCreate(OptionsFor({agent.unix_endpoint()}));
  const Status status = client->WaitConnected(Ms(1'500));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_LE(agent.received(FrameOp::kHello), 2U);  // it is asked once a second
  EXPECT_EQ(client->counters().connects, 0U);
}

// Random bytes, and proper frames with some of their bytes changed, in place of any answer.
TEST_F(ClientFault, RandomAnswersNeverCrash) {
  std::mt19937_64 random(TestSeed());
  ScriptedAgent agent(AgentOptions());
  const auto well = Connected({agent.unix_endpoint()});
  const Chain chain = Keys(3);
  PutAll(*well, chain, Contents(3, 500));
  for (int round = 0; round < 150; ++round) {
    const FrameOp op = round % 3 == 0   ? FrameOp::kHello
                       : round % 3 == 1 ? FrameOp::kLookup
                                        : FrameOp::kGet;
    wire::GetReply get;
    for (int i = 0; i < 3; ++i) get.entries.push_back(Inline(random() % 300, random()));
    std::string body = op == FrameOp::kHello    ? wire::Encode(wire::HelloReply{})
                       : op == FrameOp::kLookup ? wire::Encode(wire::LookupReply{3, {}, 1, 1, 3})
                                                : wire::Encode(get);
    const std::string payload(op == FrameOp::kGet ? random() % 900 : 0, 'p');
    for (int i = 0; i < 3; ++i) body[random() % body.size()] = static_cast<char>(random());
    if (random() % 4 == 0) body = Content(random() % 500, random());
    agent.On(op, [&](const Exchange& exchange) {
      exchange->WriteRaw(FrameBytes(ReplyTo(exchange->header), body, payload));
    });
    const auto client =
        MustCreate(OptionsFor({round % 2 == 0 ? agent.unix_endpoint() : agent.tcp_endpoint()}));
    if (client->WaitConnected(Scaled(20)).ok()) {
      const LookupOutcome found = client->Lookup(chain, 0, 3, {}, Scaled(20));
      EXPECT_LE(found.hits, 3U);
      for (const auto& block : client->Get({}, chain, 0, 3, {}, Scaled(20)).blocks) {
        EXPECT_TRUE(!block || !block->Verify() || block->bytes().size() == 500U);
      }
    }
    agent.On(op, nullptr);
  }
  EXPECT_EQ(ReadAll(*well, {}, chain, 500)[2], Content(500, 2));
}

}  // namespace
}  // namespace kvfabric
