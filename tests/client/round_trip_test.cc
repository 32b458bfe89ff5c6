// What a well-behaved agent and the client do together.

#include <algorithm>
#include <random>

#include "tests/client/client_fixture.h"
#include "transport/frame_header.h"
#include "transport/local_messages.h"

namespace kvfabric {
namespace {

// Both ways to an agent.
class RoundTrip : public ClientTest, public ::testing::WithParamInterface<bool> {
 protected:
  static bool local() { return GetParam(); }
  std::unique_ptr<Client> ConnectTo(ScriptedAgent& agent) {
    return Connected({local() ? agent.unix_endpoint() : agent.tcp_endpoint()});
  }
};

TEST_P(RoundTrip, GivesBackExactBytesOfEverySize) {
  ScriptedAgent::Options options = AgentOptions();
  options.memfd_bytes = std::uint64_t{16} << 20U;
  ScriptedAgent agent(std::move(options));
  const auto client = ConnectTo(agent);
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> contents;
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{65'536}, kPieceBytes - 1,
        kPieceBytes, kPieceBytes + 1, 3 * kPieceBytes + 17, std::size_t{3} << 20U,
        static_cast<std::size_t>(random() % 1'000'000 + 1)}) {
    contents.push_back(Content(size, random()));
  }
  const Chain chain = Keys(contents.size());
  const PutOutcome put = PutAll(*client, chain, contents);
  EXPECT_EQ(put.status, std::vector<PutResult>(contents.size(), PutResult::kOk));
  EXPECT_EQ(put.endpoint, 0U);

  const LookupOutcome found = LookupAll(*client, chain);
  ASSERT_EQ(found.hits, contents.size());
  EXPECT_EQ(found.local, contents.size());
  EXPECT_EQ(found.miss, Miss::kNone);
  ASSERT_TRUE(found.lease);
  for (std::uint32_t i = 0; i < contents.size(); ++i) {
    std::string into(contents[i].size(), '\0');
    const MutableByteSpan span(reinterpret_cast<std::byte*>(into.data()), into.size());
    EXPECT_TRUE(client->Read(found.lease, chain, i, {&span, 1}, {}, Long())[0]) << i;
    EXPECT_EQ(into, contents[i]) << i;
    const GetOutcome got = client->Get(found.lease, chain, i, 1, {}, Long());
    ASSERT_TRUE(got.blocks[0]) << i;
    EXPECT_TRUE(got.blocks[0]->Verify());
    EXPECT_EQ(AsText(got.blocks[0]->bytes()), contents[i]) << i;
  }
  EXPECT_EQ(client->counters().corrupt, 0U);
  EXPECT_EQ(client->boot_epoch(), 1'000U);
  EXPECT_EQ(client->map_epoch(), 7U);
}

TEST_P(RoundTrip, KeepsTheFirstVersionAndSaysSo) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(2);
  ASSERT_EQ(PutAll(*client, chain, Contents(2, 1'000)).status,
            std::vector<PutResult>(2, PutResult::kOk));
  EXPECT_EQ(PutAll(*client, chain, Contents(2, 1'000, 50)).status,
            std::vector<PutResult>(2, PutResult::kAlreadyExists));
  EXPECT_EQ(ReadAll(*client, {}, chain, 1'000)[1], Content(1'000, 1));
}

TEST_P(RoundTrip, CarriesMetadata) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(2);
  const std::string content = Content(500, 1);
  const std::string metadata = Content(kMaxBlockMetadataBytes, 2);
  const std::vector<PutBlock> blocks = {{AsBytes(content), metadata}, {AsBytes(content), {}}};
  ASSERT_EQ(client->Put(chain, 0, blocks, {}, Long()).status,
            std::vector<PutResult>(2, PutResult::kOk));
  const GetOutcome got = client->Get({}, chain, 0, 2, {}, Long());
  ASSERT_TRUE(got.blocks[0] && got.blocks[1]);
  EXPECT_EQ(got.blocks[0]->metadata(), metadata);
  EXPECT_EQ(got.blocks[1]->metadata(), "");
}

TEST_P(RoundTrip, AnswersTheMinimumOverLanes) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(4);
  const Lane first{0, 0};
  const Lane second{1, 3};
  ASSERT_EQ(client->Put(chain, 0, Blocks(Contents(4, 100)), first, Long()).status.size(), 4U);
  ASSERT_EQ(client->Put(chain, 0, Blocks(Contents(2, 100, 10)), second, Long()).status.size(), 2U);
  const std::vector<Lane> both = {first, second};
  EXPECT_EQ(client->Lookup(chain, 0, 4, {&first, 1}, Long()).hits, 4U);
  EXPECT_EQ(client->Lookup(chain, 0, 4, both, Long()).hits, 2U);
  EXPECT_EQ(client->Lookup(chain, 0, 4, {}, Long()).hits, 0U);  // {0, shared}
  const GetOutcome got = client->Get({}, chain, 1, 1, second, Long());
  ASSERT_TRUE(got.blocks[0]);
  EXPECT_EQ(AsText(got.blocks[0]->bytes()), Content(100, 11));
}

TEST_P(RoundTrip, StopsAChainAtItsFirstGap) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(40);
  const auto contents = Contents(40, 64);
  ASSERT_EQ(client->Put(chain, 0, Blocks(contents), {}, Long()).status.size(), 40U);
  ASSERT_EQ(client->Delete(chain, 20, 1, {}, Long()), 1U);
  const LookupOutcome all = LookupAll(*client, chain);
  EXPECT_EQ(all.hits, 20U);
  EXPECT_EQ(all.miss, Miss::kNotFound);
  EXPECT_EQ(client->Lookup(chain, 21, 19, {}, Long()).hits, 19U);
  EXPECT_EQ(client->Lookup(chain, 21, 1'000, {}, Long()).hits, 19U);  // cut at the chain's end
  EXPECT_EQ(client->Lookup(chain, 40, 1, {}, Long()).hits, 0U);
}

TEST_P(RoundTrip, AnswersSingleKeysOneByOne) {
  ScriptedAgent agent(AgentOptions());
  ClientOptions options = OptionsFor({local() ? agent.unix_endpoint() : agent.tcp_endpoint()});
  options.kind = NamespaceKind::kSingle;
  const auto client = MustCreate(std::move(options));
  ASSERT_TRUE(client->WaitConnected(Long()).ok());
  const Chain keys = Keys(5, "single-");
  ASSERT_EQ(PutAll(*client, keys, Contents(5, 300)).status.front(), PutResult::kOk);
  ASSERT_EQ(client->Delete(keys, 0, 1, {}, Long()), 1U);
  ASSERT_EQ(client->Delete(keys, 3, 1, {}, Long()), 1U);
  const LookupOutcome found = LookupAll(*client, keys);
  EXPECT_EQ(found.found, (std::vector<bool>{false, true, true, false, true}));
  EXPECT_EQ(found.hits, 3U);
  const auto read = ReadAll(*client, found.lease, keys, 300);
  EXPECT_FALSE(read[0]);
  EXPECT_EQ(read[4], Content(300, 4));
}

TEST_P(RoundTrip, MissesABlockOfAnotherLength) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(1);
  PutAll(*client, chain, Contents(1, 1'000));
  EXPECT_FALSE(ReadAll(*client, {}, chain, 999)[0]);
  EXPECT_FALSE(ReadAll(*client, {}, chain, 1'001)[0]);
  EXPECT_TRUE(ReadAll(*client, {}, chain, 1'000)[0]);
  EXPECT_EQ(client->counters().corrupt, 0U);
}

TEST_P(RoundTrip, TakesAnswersInManyParts) {
  ScriptedAgent::Options options = AgentOptions();
  options.entries_per_part = 3;
  ScriptedAgent agent(std::move(options));
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(20);
  const auto contents = Contents(20, 5'000);
  PutAll(*client, chain, contents);
  const auto read = ReadAll(*client, {}, chain, 5'000);
  for (std::size_t i = 0; i < contents.size(); ++i) EXPECT_EQ(read[i], contents[i]) << i;
}

TEST_P(RoundTrip, SplitsWhatOneRequestCannotName) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  std::vector<std::string> long_keys;  // 1 MiB of a frame's body takes some 2,000 of them
  for (int i = 0; i < 5'000; ++i) long_keys.push_back(Content(kMaxKeyBytes, 1 + i));
  auto chain = Chain::Create(std::move(long_keys));
  ASSERT_TRUE(chain.ok());
  const auto contents = Contents(chain->size(), 16);
  const PutOutcome put = PutAll(*client, *chain, contents);
  EXPECT_EQ(std::count(put.status.begin(), put.status.end(), PutResult::kOk), 5'000);
  const LookupOutcome found = LookupAll(*client, *chain);
  EXPECT_EQ(found.hits, 5'000U);
  EXPECT_GE(agent.received(FrameOp::kLookup), 3U);
  EXPECT_EQ(agent.leases(), agent.received(FrameOp::kLookup));
  EXPECT_TRUE(client->Renew(found.lease, Long()));
  const auto read = ReadAll(*client, found.lease, *chain, 16);
  EXPECT_EQ(read[0], contents[0]);
  EXPECT_EQ(read[2'500], contents[2'500]);
  EXPECT_EQ(read[4'999], contents[4'999]);
  EXPECT_EQ(client->Delete(*chain, 0, 5'000, {}, Long()), 5'000U);
  EXPECT_EQ(client->counters().connects, 1U);
}

TEST_P(RoundTrip, SplitsWhatOneRequestCannotNameInAllItsLanes) {
  ScriptedAgent agent(AgentOptions());
  std::vector<std::size_t> named;  // keys of each request
  agent.On(FrameOp::kLookup, [&](const std::shared_ptr<ScriptedAgent::Exchange>& exchange) {
    const auto request = wire::Decode<wire::LookupRequest>(AsBytes(exchange->body));
    named.push_back(request.ok() ? request->range.keys.size() : 0);
    const bool fits = request.ok() && named.back() * request->lanes.size() <= 65'536;
    if (!fits) return exchange->Fail(InvalidArgument("more keys x lanes than 65536"));
    exchange->AnswerProperly();
  });
  ClientOptions options = OptionsFor({local() ? agent.unix_endpoint() : agent.tcp_endpoint()});
  options.kind = NamespaceKind::kSingle;
  const auto client = MustCreate(std::move(options));
  ASSERT_TRUE(client->WaitConnected(Long()).ok());
  std::vector<Lane> lanes;
  for (std::uint16_t rank = 0; rank < 16; ++rank) lanes.push_back({0, rank});
  const Chain keys = Keys(4'097);
  const LookupOutcome found = client->Lookup(keys, 0, keys.size(), lanes, Long());
  EXPECT_EQ(found.miss, Miss::kNotFound);
  EXPECT_EQ(named, (std::vector<std::size_t>{4'096, 1}));
}

TEST_P(RoundTrip, FailsOnlyTheBlockThatCannotBePut) {
  ScriptedAgent agent(AgentOptions());
  const auto client = ConnectTo(agent);
  const Chain chain = Keys(6);
  const std::string good = Content(2'000, 1);
  const std::string large((std::size_t{4} << 20U) + 1, 'x');  // more than the staging memory
  const std::string talk(kMaxBlockMetadataBytes + 1, 'm');
  const std::vector<PutBlock> blocks = {{AsBytes(good), {}},   {AsBytes(large), {}},
                                        {AsBytes(good), {}},   {ByteSpan(), {}},
                                        {AsBytes(good), talk}, {AsBytes(good), {}}};
  EXPECT_EQ(client->Put(chain, 0, blocks, {}, Long()).status,
            (std::vector<PutResult>{PutResult::kOk, PutResult::kFailed, PutResult::kOk,
                                    PutResult::kFailed, PutResult::kFailed, PutResult::kOk}));
  EXPECT_EQ(client->Put(chain, 3, blocks, {}, Long()).status,
            std::vector<PutResult>(6, PutResult::kFailed));  // more blocks than keys
  EXPECT_EQ(client->counters().connects, 1U);
  EXPECT_EQ(client->counters().puts_dropped, 0U);
}

TEST_P(RoundTrip, TellsNoSpaceAsSuch) {
  ScriptedAgent::Options options = AgentOptions();
  options.memfds = 1;
  options.memfd_bytes = 8'192;
  ScriptedAgent agent(std::move(options));
  const auto client = ConnectTo(agent);
  EXPECT_EQ(PutAll(*client, Keys(3), Contents(3, 4'096)).status,
            (std::vector<PutResult>{PutResult::kOk, PutResult::kOk, PutResult::kNoSpace}));
}

TEST_P(RoundTrip, AsksForPoolUsage) {
  ScriptedAgent agent(AgentOptions());
  ClientOptions options = OptionsFor({local() ? agent.unix_endpoint() : agent.tcp_endpoint()});
  options.pool.clear();  // administration only
  const auto client = MustCreate(std::move(options));
  const auto pools = client->Stat(Long());
  ASSERT_TRUE(pools.ok()) << pools.status().ToString();
  ASSERT_EQ(pools->size(), 1U);
  EXPECT_EQ(pools->front().used_bytes, 17U);
  EXPECT_EQ(pools->front().counters.front().first, "puts");
  EXPECT_EQ(client->Put(Keys(1), 0, Blocks(Contents(1, 10)), {}, Long()).status.front(),
            PutResult::kDropped);  // it has no pool to put into
}

INSTANTIATE_TEST_SUITE_P(Both, RoundTrip, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "Local" : "Tcp"; });

TEST(Client, RefusesOptionsThatCannotWork) {
  const auto code = [](const std::function<void(ClientOptions&)>& change) {
    ClientOptions options;
    options.endpoints = {"unix:/run/kvfabric/agent.sock"};
    options.pool = "default/pool";
    change(options);
    return Client::Create(std::move(options)).status().code();
  };
  EXPECT_EQ(code([](ClientOptions&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](ClientOptions& o) { o.endpoints.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.endpoints = {"agent.sock"}; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.token.assign(70'000, 't'); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.fingerprint.assign(70'000, 'f'); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.pool.assign(70'000, 'p'); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.staging_bytes = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.connect_timeout = std::chrono::milliseconds(0); }),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvfabric
