#include "agent/service/local_service.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <future>
#include <set>
#include <thread>

#include "tests/service/local_service_fixture.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using wire::PutOutcome;

// A block as a client sees it: through its own mapping of the memfd.
std::string ReadInPlace(const LocalPeer::Frame& hello, const std::deque<LocalPeer::Frame>& others,
                        const wire::GetEntry& entry) {
  const auto greeting = wire::Decode<wire::HelloReply>(AsBytes(hello.body));
  const UniqueFd* descriptor = nullptr;
  for (std::size_t i = 0; greeting.ok() && i < greeting->memfds.size(); ++i) {
    if (greeting->memfds[i].id == entry.memfd_id) descriptor = &hello.descriptors[i];
  }
  for (const LocalPeer::Frame& frame : others) {
    if (frame.header.op != FrameOp::kNewMemfd) continue;
    const auto fresh = wire::Decode<wire::NewMemfd>(AsBytes(frame.body));
    for (std::size_t i = 0; fresh.ok() && i < fresh->memfds.size(); ++i) {
      if (fresh->memfds[i].id == entry.memfd_id) descriptor = &frame.descriptors[i];
    }
  }
  if (descriptor == nullptr) return "no descriptor";
  const std::size_t bytes = entry.offset + entry.length;
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor->get(), 0);
  if (at == MAP_FAILED) return "not mapped";
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0),
            MAP_FAILED)
      << "a client could write the fabric's memory";
  std::string block(static_cast<const char*>(at) + entry.offset, entry.length);
  ::munmap(at, bytes);
  return block;
}

TEST_F(LocalServiceTest, StoresFromStagingAndAnswersAPlaceInMemory) {
  Start();
  LocalPeer peer(UnixAddress());
  const auto hello = peer.Hello(kBlue, FakeFabric::kPool);
  ASSERT_EQ(hello.header.status, StatusCode::kOk) << hello.body;
  const TestStaging staging(1U << 20U);
  Stage(peer, staging);
  const std::string block(300'000, 'k');
  EXPECT_EQ(Put(peer, staging, {"a", "b"}, block, "meta"),
            (std::vector<PutOutcome>{PutOutcome::kOk, PutOutcome::kOk}));
  EXPECT_EQ(Put(peer, staging, {"a"}, block), std::vector<PutOutcome>{PutOutcome::kAlreadyExists});

  const auto lookup = Lookup(peer, {"a", "b", "c"});
  EXPECT_EQ(lookup.hits, 2U);
  EXPECT_NE(lookup.lease_id, 0U);
  const std::vector<std::string_view> keys = {"a", "b", "c"};
  const auto reply = peer.Call(FrameOp::kGet, wire::EncodeGet(lookup.lease_id, Lane{}, View(keys)));
  const auto get = wire::Decode<wire::GetReply>(AsBytes(reply.body));
  ASSERT_TRUE(get.ok()) << reply.body;
  ASSERT_EQ(get->entries.size(), 3U);
  EXPECT_EQ(get->lease_id, lookup.lease_id);
  for (int i : {0, 1}) {
    const wire::GetEntry& entry = get->entries[static_cast<std::size_t>(i)];
    ASSERT_EQ(entry.place, wire::GetPlace::kMemfd);
    EXPECT_EQ(entry.checksum, BlockChecksum(AsBytes(block)));
    EXPECT_EQ(entry.metadata, "meta");
    EXPECT_EQ(ReadInPlace(hello, peer.others, entry), block);
  }
  EXPECT_EQ(get->entries[2].place, wire::GetPlace::kMiss);
}

TEST_F(LocalServiceTest, CarriesBootAndMapEpochInEveryReply) {
  Start();
  const auto peer = Connect();
  const std::vector<std::string_view> keys = {"a"};
  const std::vector<Lane> lanes = {Lane{}};
  const std::vector<std::pair<FrameOp, std::string>> requests = {
      {FrameOp::kPing, ""},
      {FrameOp::kStat, ""},
      {FrameOp::kLookup, wire::EncodeLookup(lanes, View(keys))},
      {FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys))},
      {FrameOp::kDelete, wire::EncodeDelete(Lane{}, View(keys))},
      {FrameOp::kRenew, wire::Encode(wire::RenewRequest{3})},
      {FrameOp::kRelease, wire::Encode(wire::ReleaseRequest{{3}})}};
  for (const auto& [op, body] : requests) {
    const auto reply = peer->Call(op, body);
    EXPECT_EQ(reply.header.status, StatusCode::kOk) << static_cast<int>(op) << reply.body;
    EXPECT_EQ(reply.header.boot_epoch, FakeFabric::kBootEpoch);
    EXPECT_EQ(reply.header.map_epoch, FakeFabric::kMapEpoch);
  }
}

TEST_F(LocalServiceTest, AnswersTheMinimumOverLanesAndSinglesOneByOne) {
  Start();
  const auto single = Connect(kBlue, NamespaceKind::kSingle);
  const TestStaging staging(4'096);
  Stage(*single, staging);
  Put(*single, staging, {"b"}, "bytes");
  const auto found = Lookup(*single, {"a", "b"});
  EXPECT_EQ(found.found, (std::vector<bool>{false, true}));
  const auto chain = Connect();
  EXPECT_EQ(Lookup(*chain, {"b"}, {Lane{}, Lane{1, 0}}).hits, 0U);
  EXPECT_EQ(Lookup(*chain, {"b"}).hits, 1U);
}

TEST_F(LocalServiceTest, RefusesWhoItDoesNotKnow) {
  Start();
  struct Case {
    const char* token;
    const char* pool;
    std::uint16_t version;
    StatusCode code;
  };
  for (const Case& c : {Case{"guess", FakeFabric::kPool, 1, StatusCode::kUnauthenticated},
                        Case{"", FakeFabric::kPool, 1, StatusCode::kUnauthenticated},
                        Case{kBlue, "default/none", 1, StatusCode::kNotFound},
                        Case{kBlue, FakeFabric::kPool, 9, StatusCode::kUnimplemented}}) {
    LocalPeer peer(UnixAddress());
    wire::HelloRequest hello;
    hello.version = c.version;
    hello.token = c.token;
    hello.pool = c.pool;
    const auto reply = peer.Call(FrameOp::kHello, wire::Encode(hello));
    EXPECT_EQ(reply.header.status, c.code) << c.token << reply.body;
    EXPECT_EQ(reply.descriptors.size(), 0U);
    EXPECT_EQ(reply.body.find(kBlue), std::string::npos) << "a token in a text";
    peer.Next();
    EXPECT_TRUE(peer.lost && !peer.timed_out);
  }
  LocalPeer unnamed(UnixAddress());
  const auto reply = unnamed.Call(FrameOp::kPing, "");
  EXPECT_EQ(reply.header.op, FrameOp::kError);
  EXPECT_EQ(unnamed.others.size() + (unnamed.lost ? 0U : 1U), 1U);
  EXPECT_EQ(fabric_->open_sessions(), 0U);
}

TEST_F(LocalServiceTest, LetsAnAdministratorAskOnlyForStatus) {
  Start();
  LocalPeer peer(UnixAddress());
  ASSERT_EQ(peer.Hello(kBlue, "").header.status, StatusCode::kOk);
  const auto stat = wire::Decode<wire::StatReply>(AsBytes(peer.Call(FrameOp::kStat, "").body));
  ASSERT_TRUE(stat.ok());
  ASSERT_EQ(stat->pools.size(), 1U);
  EXPECT_EQ(stat->pools[0].pool, FakeFabric::kPool);
  EXPECT_EQ(stat->pools[0].capacity_bytes, 32U << 20U);
  const std::vector<std::string_view> keys = {"a"};
  const auto refused = peer.Call(FrameOp::kDelete, wire::EncodeDelete(Lane{}, View(keys)));
  EXPECT_EQ(refused.header.status, StatusCode::kFailedPrecondition);
}

TEST_F(LocalServiceTest, EndsASilentNewcomer) {
  Start({.hello_timeout = milliseconds(100)});
  LocalPeer peer(UnixAddress());
  EXPECT_EQ(peer.Next().header.status, StatusCode::kDeadlineExceeded);
  peer.Next();
  EXPECT_TRUE(peer.lost && !peer.timed_out);
}

TEST_F(LocalServiceTest, ShowsABlockOnlyWhenItsPutIsWhole) {
  std::promise<void> reached;
  std::promise<void> go_on;
  Start();
  fabric_->before_commit = [&] {
    reached.set_value();
    go_on.get_future().wait();
  };
  const auto writer = Connect();
  const auto reader = Connect();
  const TestStaging staging(1U << 20U);
  Stage(*writer, staging);
  std::memset(staging.at(), 'w', 100'000);
  const std::vector<std::string_view> keys = {"slow"};
  const std::vector<wire::PutEntry> entries = {{0, 100'000, 0, ""}};
  const auto id = writer->Send(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries));
  reached.get_future().wait();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Lookup(*reader, keys).hits, 0U);
  const auto get = wire::Decode<wire::GetReply>(
      AsBytes(reader->Call(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys))).body));
  ASSERT_TRUE(get.ok());
  EXPECT_EQ(get->entries.at(0).place, wire::GetPlace::kMiss);
  go_on.set_value();
  EXPECT_EQ(writer->Await(id).header.status, StatusCode::kOk);
  EXPECT_EQ(Lookup(*reader, keys).hits, 1U);
}

TEST_F(LocalServiceTest, OutlivesAPutWhoseClientWentAway) {
  std::promise<void> reached;
  std::promise<void> go_on;
  Start();
  fabric_->before_commit = [&] {
    reached.set_value();
    go_on.get_future().wait();
  };
  {
    const TestStaging staging(1U << 20U);
    const auto writer = Connect();
    Stage(*writer, staging);
    std::memset(staging.at(), 'w', 100'000);
    const std::vector<std::string_view> keys = {"orphan"};
    const std::vector<wire::PutEntry> entries = {{0, 100'000, 0, ""}};
    writer->Send(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries));
    reached.get_future().wait();
  }
  EXPECT_TRUE(Eventually([&] { return fabric_->open_sessions() == 0; }));
  go_on.set_value();
  const auto reader = Connect();
  EXPECT_TRUE(Eventually([&] { return Lookup(*reader, {"orphan"}).hits == 1; }));
}

TEST_F(LocalServiceTest, ReadsNothingOutsideStagingNorWithoutSeals) {
  Start();
  const auto peer = Connect();
  const std::vector<std::string_view> keys = {"k"};
  const auto put = [&](std::uint64_t offset, std::uint64_t length) {
    const std::vector<wire::PutEntry> entries = {{offset, length, 0, ""}};
    return peer->Call(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries)).header.status;
  };
  EXPECT_EQ(put(0, 10), StatusCode::kFailedPrecondition);
  const auto stage = [&](const TestStaging& staging, std::uint64_t announced) {
    return peer
        ->Call(FrameOp::kStaging, wire::Encode(wire::StagingRequest{announced}), {}, staging.fd())
        .header.status;
  };
  EXPECT_EQ(stage(TestStaging(4'096, 0), 4'096), StatusCode::kInvalidArgument);
  EXPECT_EQ(stage(TestStaging(4'096, F_SEAL_GROW), 4'096), StatusCode::kInvalidArgument);
  EXPECT_EQ(stage(TestStaging(4'096), 8'192), StatusCode::kInvalidArgument);
  EXPECT_EQ(stage(TestStaging(4'096), 2ULL << 30U), StatusCode::kResourceExhausted);
  const TestStaging good(4'096);
  EXPECT_EQ(stage(good, 4'096), StatusCode::kOk);
  EXPECT_EQ(put(4'000, 97), StatusCode::kInvalidArgument);
  EXPECT_EQ(put(0xFFFFFFFFFFFFFFF0ULL, 64), StatusCode::kInvalidArgument);
  EXPECT_EQ(put(4'000, 96), StatusCode::kOk);
}

TEST_F(LocalServiceTest, ComparesAChecksumThatTheClientGives) {
  Start();
  const auto peer = Connect();
  const TestStaging staging(4'096);
  Stage(*peer, staging);
  std::memset(staging.at(), 'x', 100);
  const std::vector<std::string_view> keys = {"k"};
  const std::vector<wire::PutEntry> entries = {{0, 100, 12345, ""}};
  const auto reply = peer->Call(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries));
  const auto put = wire::Decode<wire::PutReply>(AsBytes(reply.body));
  ASSERT_TRUE(put.ok());
  EXPECT_EQ(put->status.at(0), PutOutcome::kChecksumMismatch);
  EXPECT_EQ(Lookup(*peer, keys).hits, 0U);
}

TEST_F(LocalServiceTest, AnswersNoSpaceWhenThePutQueueIsFull) {
  std::promise<void> go_on;
  std::shared_future<void> gate = go_on.get_future().share();
  Start({}, 32U << 20U, 2);
  std::atomic<int> running{0};
  fabric_->before_commit = [gate, &running] {
    ++running;
    gate.wait();
  };
  const auto peer = Connect();
  const TestStaging staging(4'096);
  Stage(*peer, staging);
  for (int i = 0; i < 8; ++i) {
    const std::string key = "k" + std::to_string(i);
    const std::vector<std::string_view> keys = {key};
    const std::vector<wire::PutEntry> entries = {{0, 100, 0, ""}};
    peer->Send(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries));
    if (i < 2) {
      ASSERT_TRUE(Eventually([&] { return running == i + 1; }));
    }
  }
  // Two run, two wait; four find no room and are answered at once.
  for (int refused = 0; refused < 4; ++refused) {
    const auto reply = peer->Next();
    const auto put = wire::Decode<wire::PutReply>(AsBytes(reply.body));
    ASSERT_TRUE(put.ok());
    EXPECT_EQ(put->status.at(0), PutOutcome::kNoSpace);
  }
  go_on.set_value();
  for (int stored = 0; stored < 4; ++stored) {
    const auto put = wire::Decode<wire::PutReply>(AsBytes(peer->Next().body));
    ASSERT_TRUE(put.ok());
    EXPECT_EQ(put->status.at(0), PutOutcome::kOk);
  }
}

TEST_F(LocalServiceTest, TakesNoMoreRequestsThanMayBeInFlight) {
  Start({.max_in_flight = 8});
  const auto peer = Connect();
  fabric_->Hold();
  const std::vector<std::string_view> keys = {"k"};
  const std::vector<Lane> lanes = {Lane{}};
  for (int i = 0; i < 50; ++i) {
    peer->Send(FrameOp::kLookup, wire::EncodeLookup(lanes, View(keys)));
  }
  EXPECT_TRUE(Eventually([&] { return fabric_->held() == 8; }));
  const auto other = Connect();  // nobody else waits
  EXPECT_EQ(other->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
  EXPECT_EQ(fabric_->held(), 8U);
  fabric_->AnswerHeld();
  std::set<std::uint64_t> answered;
  while (answered.size() < 50) {
    const auto reply = peer->Next();
    ASSERT_FALSE(peer->lost) << answered.size();
    EXPECT_EQ(reply.header.status, StatusCode::kOk);
    answered.insert(reply.header.request_id);
  }
}

// More answers at once than a loop's queue has room for tasks, while the loop is busy.
TEST_F(LocalServiceTest, LosesNoAnswerForWantOfRoomOnItsLoop) {
  Start({}, 32U << 20U, 1'024, 4);
  const auto peer = Connect();
  fabric_->Hold();
  const std::vector<std::string_view> keys = {"k"};
  const std::vector<Lane> lanes = {Lane{}};
  for (int i = 0; i < 40; ++i) {
    peer->Send(FrameOp::kLookup, wire::EncodeLookup(lanes, View(keys)));
  }
  ASSERT_TRUE(Eventually([&] { return fabric_->held() == 40; }));
  std::promise<void> go_on;
  const std::shared_future<void> busy = go_on.get_future().share();
  for (const auto& loop : loops_) ASSERT_TRUE(loop->Submit([busy] { busy.wait(); }));
  fabric_->AnswerHeld();
  go_on.set_value();
  std::set<std::uint64_t> answered;
  while (answered.size() < 40) {
    const auto reply = peer->Next();
    ASSERT_FALSE(peer->lost) << answered.size();
    answered.insert(reply.header.request_id);
  }
}

TEST_F(LocalServiceTest, KeepsNoLeaseOfAGetWhoseOwnHasEnded) {
  Start();
  ListenOnTcp();
  const auto peer = ConnectTcp();
  const std::vector<std::string_view> keys = {"k"};
  const auto reply = peer->Call(FrameOp::kGet, wire::EncodeGet(4'711, Lane{}, View(keys)));
  const auto got = wire::Decode<wire::GetReply>(AsBytes(reply.body));
  ASSERT_TRUE(got.ok()) << reply.body;
  EXPECT_EQ(got->lease_id, 0U);
  EXPECT_EQ(fabric_->leases(), 0U);
}

TEST_F(LocalServiceTest, ClosesConnectionsOverItsBound) {
  Start({.max_connections = 2});
  const auto one = Connect();
  const auto two = Connect();
  LocalPeer three(UnixAddress());
  three.Next();
  EXPECT_TRUE(three.lost && !three.timed_out);
  EXPECT_EQ(one->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
}

TEST_F(LocalServiceTest, EndsLeasesAndMappingsWithTheConnection) {
  Start();
  const auto writer = Connect();
  const TestStaging staging(4'096);
  Stage(*writer, staging);
  Put(*writer, staging, {"k"}, "block");
  auto reader = Connect();
  EXPECT_EQ(Lookup(*reader, {"k"}).hits, 1U);
  EXPECT_EQ(Lookup(*reader, {"k"}).hits, 1U);
  EXPECT_EQ(fabric_->leases(), 2U);
  const auto before = std::chrono::steady_clock::now();
  reader.reset();
  EXPECT_TRUE(Eventually([&] { return fabric_->leases() == 0; }, milliseconds(100)));
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(100) * TimeScale());
  EXPECT_EQ(fabric_->engine().Stats().pinned_bytes, 0U);
  EXPECT_EQ(fabric_->open_sessions(), 1U) << "others are not touched";
}

TEST_F(LocalServiceTest, GivesLateAnswersToNobody) {
  Start();
  auto peer = Connect();
  fabric_->Hold();
  const std::vector<std::string_view> keys = {"k"};
  const std::vector<Lane> lanes = {Lane{}};
  peer->Send(FrameOp::kLookup, wire::EncodeLookup(lanes, View(keys)));
  peer->Send(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys)));
  ASSERT_TRUE(Eventually([&] { return fabric_->held() == 2; }));
  peer.reset();
  ASSERT_TRUE(Eventually([&] { return fabric_->open_sessions() == 0; }));
  fabric_->AnswerHeld();
  EXPECT_EQ(fabric_->leases(), 0U);
  EXPECT_EQ(Connect()->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
}

TEST_F(LocalServiceTest, SplitsAnAnswerThatIsTooLongForOneFrame) {
  Start();
  const auto peer = Connect();
  const TestStaging staging(1U << 20U);
  Stage(*peer, staging);
  constexpr std::size_t kBlocks = 400;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kBlocks; ++i) names.push_back("key-" + std::to_string(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  for (std::size_t at = 0; at < kBlocks; at += 200) {  // the request has the same limit
    const std::vector<std::string_view> some(keys.begin() + static_cast<std::ptrdiff_t>(at),
                                             keys.begin() + static_cast<std::ptrdiff_t>(at + 200));
    Put(*peer, staging, some, "x", std::string(kMaxBlockMetadataBytes, 'm'));
  }
  const auto id = peer->Send(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys)));
  std::size_t found = 0;
  for (bool more = true; more;) {
    const auto frame = peer->Next();
    ASSERT_FALSE(peer->lost);
    if (frame.header.op != FrameOp::kGet) continue;
    EXPECT_EQ(frame.header.request_id, id);
    const auto part = wire::Decode<wire::GetReply>(AsBytes(frame.body));
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->first_index, found);
    for (const wire::GetEntry& entry : part->entries) {
      EXPECT_EQ(entry.metadata.size(), kMaxBlockMetadataBytes);
      ++found;
    }
    more = frame.header.more();
  }
  EXPECT_EQ(found, kBlocks);
}

TEST_F(LocalServiceTest, CountsWhatItCannotReadAndServesOn) {
  Start();
  const auto good = Connect();
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const auto bad = Connect();
    const auto op = static_cast<FrameOp>(random() % 70);
    std::string body(random() % 200, '\0');
    for (char& c : body) c = static_cast<char>(random());
    bad->Send(op, std::move(body), {}, -1, static_cast<std::uint32_t>(random() % 50));
    const auto reply = bad->Next(200);
    if (!bad->lost && reply.header.op != FrameOp::kError) {
      EXPECT_TRUE(reply.header.reply()) << static_cast<int>(op);
    }
  }
  EXPECT_EQ(good->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
  EXPECT_NE(metrics_.Render().find("kvfabric_service_local_faults_total"), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return fabric_->open_sessions() == 1; }));
}

TEST_F(LocalServiceTest, ClosesAllWhenItIsDestroyed) {
  Start();
  const auto one = Connect();
  const auto two = Connect();
  service_.reset();
  EXPECT_EQ(fabric_->open_sessions(), 0U);
  one->Next();
  EXPECT_TRUE(one->lost && !one->timed_out);
  EXPECT_FALSE(std::filesystem::exists(path()));
  // And another may take its place at once.
  LocalService::Options options;
  options.socket_path = path();
  service_ = MustStart(options);
  EXPECT_EQ(Connect()->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
}

}  // namespace
}  // namespace kvfabric
