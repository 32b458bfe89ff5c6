// Bulk server and client over real sockets: exact bytes or nothing.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "agent/service/bulk_channel.h"
#include "agent/service/bulk_client.h"
#include "agent/service/bulk_messages.h"
#include "agent/service/bulk_server.h"
#include "tests/fakes/test_authority.h"
#include "tests/service/test_node.h"
#include "transport/plain_stream.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

Deadline In(int ms) { return Deadline::After(Clock::System(), milliseconds(ms) * 5); }

// A holder with its server, and a requester with its client, on loops of their own.
struct Pair {
  TestNode holder;
  TestNode requester;
  Timer timer{Clock::System()};
  std::unique_ptr<EventLoop> server_loop = std::move(*EventLoop::Create({.name = "server"}));
  std::unique_ptr<EventLoop> client_loop = std::move(*EventLoop::Create({.name = "client"}));
  std::unique_ptr<BulkServer> server;
  std::unique_ptr<BulkClient> client;
  std::string token;

  explicit Pair(BulkServer::Options options = {}, BulkClient::Options client_options = {}) {
    BulkServer::Environment environment;
    environment.handler = &holder;
    environment.loops = {server_loop.get()};
    environment.clock = &Clock::System();
    environment.metrics = &holder.metrics;
    auto listening = BulkServer::Listen(std::move(options), environment);
    EXPECT_TRUE(listening.ok()) << listening.status().ToString();
    server = std::move(*listening);
    token = server->AddSession(5);

    BulkClient::Environment at_client;
    at_client.loops = {client_loop.get()};
    at_client.timer = &timer;
    at_client.clock = &Clock::System();
    at_client.metrics = &requester.metrics;
    client = std::make_unique<BulkClient>(client_options, at_client);
  }
  void Open() { client->Open(1, *SocketAddress::Tcp("127.0.0.1", server->port()), token); }

  Result<FetchResult> Fetch(const std::vector<BlockHeader>& headers, int ms = 5'000) {
    std::vector<FetchItem> items;
    for (const BlockHeader& header : headers) items.push_back({header.id});
    Waiter<FetchResult> waiter;
    client->Fetch("p1", 41, std::move(items), requester.Sink(), In(ms), waiter.Completion());
    return waiter.Wait();
  }
};

double Faults(TestNode& node) {
  return node.metrics
      .GetCounter("kvfabric_agent_bulk_faults_total",
                  "Bulk connections that spoke wrongly and were closed")
      .Value();
}

// A fault is counted when its connection is gone, which lets the error frame out first.
void AwaitFaults(Pair& pair, double expected) {
  for (int i = 0; i < 100'000 && Faults(pair.holder) < expected; ++i) {
    pair.server_loop->RunSync([] {});
  }
  EXPECT_EQ(Faults(pair.holder), expected);
}

TEST(Bulk, FetchesExactBytesInTheOrderAsked) {
  Pair pair;
  pair.Open();
  std::vector<BlockHeader> headers;
  std::vector<std::string> bytes;
  for (std::size_t i = 0; i < 40; ++i) {
    headers.push_back(TestHeader("key-" + std::to_string(i)));
    headers.back().metadata = "meta-" + std::to_string(i);
    headers.back().depth = static_cast<std::uint32_t>(i);
    // One byte, less than a piece, several pieces and a rest.
    constexpr std::size_t kSizes[] = {700'001, 1, 977, 262'144};
    bytes.push_back(RandomBytes(kSizes[i % 4], i));
    pair.holder.Put(headers.back(), bytes.back());
  }
  auto result = pair.Fetch(headers);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_EQ(result->blocks.size(), headers.size());
  for (std::size_t i = 0; i < headers.size(); ++i) {
    ASSERT_TRUE(result->blocks[i]) << i;
    EXPECT_EQ(AsText(result->blocks[i]->bytes()), bytes[i]);
    const BlockHeader& header = result->blocks[i]->header();
    EXPECT_EQ(header.key, headers[i].key);
    EXPECT_EQ(header.metadata, headers[i].metadata);
    EXPECT_EQ(header.depth, headers[i].depth);
    EXPECT_EQ(header.slot, 7U);
    EXPECT_EQ(header.ns->tenant, "blue");
    EXPECT_EQ(header.ns->digest, headers[i].ns->digest);
  }
}

TEST(Bulk, AnswersMissesBetweenHits) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes of a");
  pair.holder.Put(TestHeader("c"), "bytes of c");
  auto result = pair.Fetch({TestHeader("a"), TestHeader("b"), TestHeader("c")});
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->blocks[0]);
  EXPECT_FALSE(result->blocks[1]);
  EXPECT_TRUE(result->blocks[2]);
}

TEST(Bulk, SkipsWhatTheSinkDoesNotWant) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), RandomBytes(100'000, 1));
  pair.holder.Put(TestHeader("b"), RandomBytes(100'000, 2));
  std::vector<FetchItem> items = {{TestHeader("a").id}, {TestHeader("b").id}};
  Waiter<FetchResult> waiter;
  const FetchSink to = pair.requester.Sink();
  pair.client->Fetch(
      "p1", 41, items,
      [to](const BlockHeader& header) { return header.key == "a" ? Reservation() : to(header); },
      In(5'000), waiter.Completion());
  auto result = waiter.Wait();
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->blocks[0]);
  ASSERT_TRUE(result->blocks[1]);
  EXPECT_EQ(AsText(result->blocks[1]->bytes()), RandomBytes(100'000, 2));
}

TEST(Bulk, ThrowsAwayWhatArrivesWithAnotherChecksum) {
  Pair pair;
  pair.Open();
  const PinnedBlock block = pair.holder.Put(TestHeader("a"), RandomBytes(300'000, 1));
  pair.holder.Put(TestHeader("b"), "fine");
  // Memory that went bad at the holder.
  const_cast<std::byte*>(block.bytes().data())[299'999] ^= std::byte{1};
  auto result = pair.Fetch({TestHeader("a"), TestHeader("b")});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->blocks[0]);
  EXPECT_TRUE(result->blocks[1]);
  EXPECT_FALSE(pair.requester.engine->Contains(TestHeader("a").id));
  EXPECT_EQ(pair.requester.metrics.GetCounter("kvfabric_agent_bulk_checksum_mismatches_total", "")
                .Value(),
            1.0);
}

TEST(Bulk, PushesFromPinnedMemoryAndSaysWhatIsStored) {
  Pair pair;
  pair.Open();
  std::vector<PinnedBlock> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(pair.requester.Put(TestHeader("key-" + std::to_string(i)),
                                        RandomBytes(50'000 + static_cast<std::size_t>(i), 7)));
  }
  pair.holder.Put(TestHeader("key-3"), RandomBytes(50'003, 7));  // has it already
  // One that went bad in our memory must not be stored there.
  const_cast<std::byte*>(blocks[4].bytes().data())[17] ^= std::byte{1};
  Waiter<PushResult> waiter;
  pair.client->Push("p1", OfferReason::kReplica, blocks, In(5'000), waiter.Completion());
  auto result = waiter.Wait();
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(result->stored[i], i != 4) << i;
    const auto there = pair.holder.engine->PinById(blocks[i].header().id);
    ASSERT_EQ(there.has_value(), i != 4) << i;
    if (there) {
      EXPECT_EQ(AsText(there->bytes()), RandomBytes(50'000 + i, 7));
    }
  }
}

TEST(Bulk, RefusesAWrongToken) {
  Pair pair;
  pair.token = std::string(16, 'x');
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  auto result = pair.Fetch({TestHeader("a")}, 60);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(Faults(pair.holder), 1.0);
}

TEST(Bulk, ClosesConnectionsWhenTheirSessionEnds) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  ASSERT_TRUE(pair.Fetch({TestHeader("a")}).ok());
  pair.server->EndSession(pair.token);  // its loop closes them; a fetch may be faster
  const auto patience = In(5'000);
  bool served = true;
  while (served && !patience.Passed(Clock::System())) {
    served = pair.Fetch({TestHeader("a")}, 60).ok();
  }
  EXPECT_FALSE(served);
}

TEST(Bulk, ReturnsWhatItHasByTheDeadline) {
  // The holder answers the first block and then stands still.
  class SlowNode final : public TestNode {
   public:
    std::optional<PinnedBlock> OnFetch(SessionId session, const std::string& pool,
                                       std::uint64_t lease, const KeyId& id) override {
      if (id == TestHeader("late").id) {
        std::unique_lock<std::mutex> lock(mu);
        gate.wait(lock, [&] { return open; });
      }
      return TestNode::OnFetch(session, pool, lease, id);
    }
    std::mutex mu;
    std::condition_variable gate;
    bool open = false;
  };
  SlowNode slow;
  Pair pair({}, {.connections = 1});
  BulkServer::Environment environment;
  environment.handler = &slow;
  environment.loops = {pair.server_loop.get()};
  environment.clock = &Clock::System();
  environment.metrics = &slow.metrics;
  auto server = std::move(*BulkServer::Listen({}, environment));
  pair.client->Open(1, *SocketAddress::Tcp("127.0.0.1", server->port()), server->AddSession(5));
  slow.Put(TestHeader("early"), "early bytes");
  slow.Put(TestHeader("late"), "late bytes");
  ASSERT_TRUE(pair.Fetch({TestHeader("early")}).ok());

  const auto began = std::chrono::steady_clock::now();
  Waiter<FetchResult> waiter;
  pair.client->Fetch(
      "p1", 1, {{TestHeader("early").id}, {TestHeader("late").id}},
      [&](const BlockHeader& header) {
        return std::move(*pair.requester.engine->Reserve(header, BlockOrigin::kTransient));
      },
      Deadline::After(Clock::System(), milliseconds(200)), waiter.Completion());
  auto result = waiter.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(400) * TimeScale());
  EXPECT_FALSE(result.ok() && result->blocks[1]);
  {
    const std::lock_guard<std::mutex> lock(slow.mu);
    slow.open = true;
    slow.gate.notify_all();
  }
  server.reset();
}

TEST(Bulk, EndsWhatIsUnderWayWhenClosed) {
  Pair pair;  // never opened to a listening port: requests wait
  pair.client->Open(1, *SocketAddress::Tcp("127.0.0.1", 1), std::string(16, 'x'));
  Waiter<FetchResult> waiter;
  pair.client->Fetch("p1", 1, {{TestHeader("a").id}}, pair.requester.Sink(), In(60'000),
                     waiter.Completion());
  EXPECT_FALSE(waiter.done());
  pair.client->Close(1, Unavailable("peer down"));
  EXPECT_EQ(waiter.Wait().status().code(), StatusCode::kUnavailable);
  Waiter<PushResult> push;
  pair.client->Push("p1", OfferReason::kSpill, {}, In(1'000), push.Completion());
  EXPECT_FALSE(push.Wait().ok());
  EXPECT_EQ(pair.Fetch({TestHeader("a")}).status().code(), StatusCode::kUnavailable);
}

// No connection comes about while the session lasts: what waits for one is let go by its deadline.
TEST(Bulk, PinsNothingOfAPushThatEndedUnsent) {
  Pair pair({}, {.connections = 1});
  pair.client->Open(1, *SocketAddress::Tcp("127.0.0.1", 1), std::string(16, 'x'));
  // More than may wait at a time: those that ended make room.
  for (std::size_t i = 0; i < BulkChannel::kMaxWaiting + 10; ++i) {
    std::vector<PinnedBlock> blocks;
    blocks.push_back(pair.requester.Put(TestHeader("key-" + std::to_string(i)), "bytes"));
    Waiter<PushResult> waiter;
    pair.client->Push("p1", OfferReason::kSpill, std::move(blocks), In(0), waiter.Completion());
    ASSERT_EQ(waiter.Wait().status().code(), StatusCode::kDeadlineExceeded) << i;
  }
  EXPECT_EQ(pair.requester.engine->Stats().pinned_bytes, 0U);
}

// Breaks this process's connections to a port, as a network that goes away would.
int BreakConnectionsTo(std::uint16_t port) {
  int broken = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    ::shutdown(fd, SHUT_RDWR);
    ++broken;
  }
  return broken;
}

TEST(Bulk, ReconnectsWhileTheSessionLasts) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes of a");
  pair.holder.Put(TestHeader("b"), "bytes of b");
  ASSERT_TRUE(pair.Fetch({TestHeader("a")}).ok());
  ASSERT_GE(BreakConnectionsTo(pair.server->port()), 1);
  // What is under way when a connection breaks fails; what comes later finds a new one.
  const auto until = std::chrono::steady_clock::now() + milliseconds(5'000) * TimeScale();
  bool served = false;
  while (!served && std::chrono::steady_clock::now() < until) {
    const auto result = pair.Fetch({TestHeader("b")});
    served = result.ok() && result->blocks[0];
  }
  EXPECT_TRUE(served);
}

TEST(Bulk, JoinsTheNextSessionAfterARestart) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  ASSERT_TRUE(pair.Fetch({TestHeader("a")}).ok());
  const std::uint16_t port = pair.server->port();
  pair.server.reset();
  BulkServer::Environment environment;
  environment.handler = &pair.holder;
  environment.loops = {pair.server_loop.get()};
  environment.clock = &Clock::System();
  environment.metrics = &pair.holder.metrics;
  auto again = BulkServer::Listen({.port = port}, environment);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  pair.server = std::move(*again);
  EXPECT_FALSE(pair.Fetch({TestHeader("a")}, 100).ok());  // the token is of the old run
  const SocketAddress address = *SocketAddress::Tcp("127.0.0.1", port);
  pair.client->Open(2, address, pair.server->AddSession(6));
  EXPECT_TRUE(pair.Fetch({TestHeader("a")}).ok());
  // Late news of the old session change nothing.
  pair.client->Close(1, Unavailable("old session"));
  EXPECT_TRUE(pair.Fetch({TestHeader("a")}).ok());
}

// A raw socket that speaks to the server byte by byte.
class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port) {
    auto fd = ConnectBlocking(*SocketAddress::Tcp("127.0.0.1", port), In(2'000));
    EXPECT_TRUE(fd.ok());
    fd_ = std::move(*fd);
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    ::fcntl(fd_.get(), F_SETFL, flags & ~O_NONBLOCK);
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Join(const std::string& token) {
    Send(Frame(FrameOp::kJoin, token, ""));
    char reply[kFrameHeaderBytes];
    EXPECT_EQ(::recv(fd_.get(), reply, sizeof(reply), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(reply)));
  }
  static std::string Frame(FrameOp op, const std::string& body, const std::string& payload) {
    FrameHeader header;
    header.op = op;
    header.request_id = 9;
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.payload_checksum = payload.empty() ? 0 : BlockChecksum(AsBytes(payload));
    header.body_hash = FrameBodyHash(AsBytes(body));
    const auto head = EncodeFrameHeader(header);
    return std::string(AsText(head)) + body + payload;
  }
  // Reads until the server closes.
  void ExpectClosed() {
    char buffer[4096];
    while (::recv(fd_.get(), buffer, sizeof(buffer), 0) > 0) {
    }
  }
  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

TEST(Bulk, LeavesNothingOfAPushThatWasCutShort) {
  Pair pair;
  RawPeer raw(pair.server->port());
  raw.Join(pair.token);
  BlockHeader header = TestHeader("half");
  const std::string bytes = RandomBytes(600'000, 3);
  header.length_bytes = bytes.size();
  header.checksum = BlockChecksum(AsBytes(bytes));
  const std::string frame = RawPeer::Frame(
      FrameOp::kPeerPush,
      EncodeBulkPush("p1", OfferReason::kReplica, header, Clock::System().Now()), bytes);
  raw.Send(frame.substr(0, frame.size() - 1));
  EXPECT_FALSE(pair.holder.engine->PinById(header.id));
  raw.Close();
  // The connection is gone, and so is the memory: the same block can be put.
  for (int i = 0; i < 2000 && pair.server->connections() > 0; ++i) {
    pair.server_loop->RunSync([] {});
  }
  EXPECT_EQ(pair.server->connections(), 0U);
  EXPECT_FALSE(pair.holder.engine->Contains(header.id));
  EXPECT_EQ(pair.holder.engine->Stats().blocks, 0U);
  pair.holder.Put(TestHeader("half"), bytes);
}

TEST(Bulk, ClosesOnGarbageAndServesOthers) {
  Pair pair;
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  BlockHeader forged = TestHeader("a");
  forged.key = "b";  // an id that is not that of its key
  forged.length_bytes = 4;
  const std::string forged_push =
      EncodeBulkPush("p1", OfferReason::kSpill, forged, Clock::System().Now());
  const std::vector<std::pair<bool, std::string>> cases = {
      {false, std::string(200, '\xee')},
      {false, RawPeer::Frame(FrameOp::kPeerFetch, "x", "")},  // before a join
      {false, RawPeer::Frame(FrameOp::kJoin, "short", "")},
      {true, RawPeer::Frame(FrameOp::kPeerFetch, "not a fetch", "")},
      {true, RawPeer::Frame(FrameOp::kPeerPush, "not a push", "data")},
      {true, RawPeer::Frame(FrameOp::kPeerPush, forged_push, "data")},
      {true, RawPeer::Frame(static_cast<FrameOp>(99), "", "")},
      {true, RawPeer::Frame(FrameOp::kJoin, pair.token, "")},
  };
  for (const auto& [joined, bytes] : cases) {
    RawPeer raw(pair.server->port());
    if (joined) raw.Join(pair.token);
    raw.Send(bytes);
    raw.ExpectClosed();
  }
  AwaitFaults(pair, static_cast<double>(cases.size()));
  EXPECT_TRUE(pair.Fetch({TestHeader("a")}).ok());
}

TEST(BulkMessages, KeepAgesNotTimes) {
  const Clock::TimePoint then = Clock::TimePoint(std::chrono::seconds(1000));
  BlockHeader header = TestHeader("a");
  header.last_touch_us = 990'000'000;
  header.spilled_in = true;
  header.parent = TestHeader("parent").id;
  const Clock::TimePoint there = Clock::TimePoint(std::chrono::seconds(50));
  const auto decoded = DecodeBlockHeader(AsBytes(EncodeBlockHeader(header, then)), "p1", there);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->last_touch_us, 40'000'000);
  EXPECT_TRUE(decoded->spilled_in);
  EXPECT_FALSE(decoded->has_other_holder);
  EXPECT_EQ(decoded->parent, header.parent);
  // A host that has run for less than the block's age: not before its time began.
  const auto young = DecodeBlockHeader(AsBytes(EncodeBlockHeader(header, then)), "p1",
                                       Clock::TimePoint(std::chrono::seconds(3)));
  EXPECT_EQ(young->last_touch_us, 0);
}

TEST(BulkMessages, RefuseWhatIsTruncatedOrTooLong) {
  BlockHeader header = TestHeader("a");
  header.metadata = "m";
  const std::string push = EncodeBulkPush("p1", OfferReason::kDrain, header, Clock::System().Now());
  for (std::size_t n = 0; n < push.size(); ++n) {
    EXPECT_FALSE(DecodeBulkPush(AsBytes(push).first(n), Clock::System().Now()).ok());
  }
  EXPECT_FALSE(DecodeBulkPush(AsBytes(push + "x"), Clock::System().Now()).ok());
  BulkFetch fetch;
  fetch.pool_uid = "p1";
  EXPECT_FALSE(DecodeBulkFetch(AsBytes(EncodeBulkFetch(fetch))).ok());  // names nothing
  fetch.ids.resize(kMaxFetchItems + 1);
  EXPECT_FALSE(DecodeBulkFetch(AsBytes(EncodeBulkFetch(fetch))).ok());
  fetch.ids.resize(3);
  const std::string body = EncodeBulkFetch(fetch);
  EXPECT_TRUE(DecodeBulkFetch(AsBytes(body)).ok());
  for (std::size_t n = 0; n < body.size(); ++n) {
    EXPECT_FALSE(DecodeBulkFetch(AsBytes(body).first(n)).ok());
  }
}

// Both ends with certificates, as agents have them.
struct TlsEnds {
  TestAuthority ca;
  std::shared_ptr<const TlsMaterial> at_holder = ca.Material(CertificateIdentity::Agent("holder"));
  std::shared_ptr<const TlsMaterial> at_requester =
      ca.Material(CertificateIdentity::Agent("requester"));
  bool clear = false;  // pool p1 may travel in clear
  BulkTls holder_tls{[this] { return at_holder; }, [this](const std::string&) { return clear; }};
  BulkTls requester_tls{[this] { return at_requester; },
                        [this](const std::string&) { return clear; }};

  BulkServer::Options Server() {
    BulkServer::Options options;
    options.tls = &holder_tls;
    return options;
  }
  BulkClient::Options Client(const std::string& expected = "holder") {
    BulkClient::Options options;
    options.tls = &requester_tls;
    options.peer_identity = CertificateIdentity::Agent(expected).ToString();
    return options;
  }
};

TEST(BulkTlsTest, CarriesExactBytesAlsoAfterNewCertificates) {
  TlsEnds ends;
  Pair pair(ends.Server(), ends.Client());
  pair.Open();
  const std::string bytes = RandomBytes(3'000'001, 1);
  pair.holder.Put(TestHeader("a"), bytes);
  auto fetched = pair.Fetch({TestHeader("a"), TestHeader("b")});
  ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
  ASSERT_TRUE(fetched->blocks[0]);
  EXPECT_EQ(AsText(fetched->blocks[0]->bytes()), bytes);
  EXPECT_FALSE(fetched->blocks[1]);

  // Of another CA altogether: connections live on, new ones take them.
  const TestAuthority next("next CA");
  pair.server_loop->RunSync(
      [&] { ends.at_holder = next.Material(CertificateIdentity::Agent("holder")); });
  pair.holder.Put(TestHeader("c"), bytes);
  EXPECT_TRUE(pair.Fetch({TestHeader("c")})->blocks[0]);
  pair.client_loop->RunSync(
      [&] { ends.at_requester = next.Material(CertificateIdentity::Agent("requester")); });
  pair.client->Open(2, *SocketAddress::Tcp("127.0.0.1", pair.server->port()), pair.token);
  pair.holder.Put(TestHeader("d"), bytes);
  fetched = pair.Fetch({TestHeader("d")});
  ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
  EXPECT_TRUE(fetched->blocks[0]);
}

TEST(BulkTlsTest, RefusesAHolderThatIsAnother) {
  TlsEnds ends;
  Pair pair(ends.Server(), ends.Client("somebody-else"));
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  EXPECT_EQ(pair.Fetch({TestHeader("a")}, 100).status().code(), StatusCode::kDeadlineExceeded);
}

TEST(BulkTlsTest, TokenOfOneAgentIsWorthNothingToAnother) {
  TlsEnds ends;
  Pair pair(ends.Server(), ends.Client());
  pair.token = pair.server->AddSession(5, CertificateIdentity::Agent("third").ToString());
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  EXPECT_EQ(pair.Fetch({TestHeader("a")}, 100).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(Faults(pair.holder), 1);
}

TEST(BulkTlsTest, StrangersGetNothing) {
  TlsEnds ends;
  const TestAuthority stranger("stranger");
  auto forged =
      std::make_shared<TlsMaterial>(*stranger.Material(CertificateIdentity::Agent("requester")));
  forged->trusted_pem = ends.ca.trusted();
  ends.at_requester = forged;
  Pair pair(ends.Server(), ends.Client());
  pair.Open();
  pair.holder.Put(TestHeader("a"), "bytes");
  EXPECT_EQ(pair.Fetch({TestHeader("a")}, 100).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(Faults(pair.holder), 1);
}

TEST(BulkTlsTest, InClearTravelsOnlyWhatMay) {
  TlsEnds ends;
  {
    Pair pair(ends.Server());  // a client without TLS
    pair.Open();
    pair.holder.Put(TestHeader("a"), "bytes");
    const auto refused = pair.Fetch({TestHeader("a")}, 100);
    EXPECT_FALSE(refused.ok() && refused->blocks[0]);
    AwaitFaults(pair, 1);
  }
  ends.clear = true;
  Pair plain(ends.Server());
  plain.Open();
  plain.holder.Put(TestHeader("a"), "bytes");
  EXPECT_TRUE(plain.Fetch({TestHeader("a")})->blocks[0]);
  Pair both(ends.Server(),
            ends.Client());  // opens connections in clear when the first is asked for
  both.Open();
  both.holder.Put(TestHeader("a"), "bytes");
  EXPECT_TRUE(both.Fetch({TestHeader("a")})->blocks[0]);
}

}  // namespace
}  // namespace kvfabric
