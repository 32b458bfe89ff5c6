// Two agents' peer edges in one process: real gRPC, real bulk connections, port 0.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "agent/service/bulk_server.h"
#include "agent/service/grpc_peer_link.h"
#include "agent/service/grpc_peer_service.h"
#include "agent/service/grpc_server.h"
#include "kvfabric/v1/peer.grpc.pb.h"
#include "tests/service/test_channel.h"
#include "tests/service/test_node.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline In(int ms) {
  return Deadline::After(Clock::System(), milliseconds(static_cast<int>(ms * TimeScale())));
}

// One agent: blocks, both servers, and a connector to others.
struct TestAgent {
  PeerIdentity self;
  TestNode node;
  Timer timer{Clock::System()};
  WorkerPool executor{"peer", 2, 4096};
  std::unique_ptr<EventLoop> loop = std::move(*EventLoop::Create({.name = "loop"}));
  std::unique_ptr<BulkServer> bulk;
  std::unique_ptr<GrpcPeerService> service;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<GrpcPeerConnector> connector;

  explicit TestAgent(const std::string& name, std::uint64_t boot_epoch = 100,
                     milliseconds silence = milliseconds(10'000))
      : self{name, "uid-" + name, boot_epoch} {
    BulkServer::Environment bulk_environment;
    bulk_environment.handler = &node;
    bulk_environment.loops = {loop.get()};
    bulk_environment.clock = &Clock::System();
    bulk_environment.metrics = &node.metrics;
    bulk = std::move(*BulkServer::Listen({}, bulk_environment));

    GrpcPeerService::Environment environment;
    environment.handler = &node;
    environment.bulk = bulk.get();
    environment.executor = &executor;
    environment.timer = &timer;
    environment.clock = &Clock::System();
    environment.metrics = &node.metrics;
    GrpcPeerService::Options options;
    options.self = self;
    options.tenant_of_token = TestTenantOfToken;
    options.silence = silence;
    service = std::make_unique<GrpcPeerService>(std::move(options), environment);
    service->SetServing(true);
    StartServer(0);

    GrpcPeerConnector::Environment outward;
    outward.loops = {loop.get()};
    outward.timer = &timer;
    outward.clock = &Clock::System();
    outward.metrics = &node.metrics;
    connector = std::make_unique<GrpcPeerConnector>(LinkOptions(), outward);
  }
  ~TestAgent() {
    connector.reset();
    server.reset();
    service.reset();
    bulk.reset();
    executor.Shutdown();
    loop->Stop();
  }

  void StartServer(std::uint16_t port) {
    auto started = GrpcServer::Start({.listen = {"127.0.0.1", port}}, {&service->service()});
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server = std::move(*started);
  }
  GrpcPeerConnector::Options LinkOptions() const {
    GrpcPeerConnector::Options options;
    options.self = self;
    options.token = [] { return std::string("token-admin"); };
    return options;
  }
  PeerAddress address() const {
    return {self.node_name, self.agent_uid, "127.0.0.1", server->port()};
  }
};

// The first message of a session from node-a to node-b.
v1::PeerRequest HelloOfNodeA() {
  v1::PeerRequest request;
  request.set_request_id(1);
  request.mutable_hello()->set_version(1);
  request.mutable_hello()->set_node_name("node-a");
  request.mutable_hello()->set_agent_uid("uid-a");
  request.mutable_hello()->set_expect_node_name("node-b");
  return request;
}

double Refused(TestAgent& agent) {
  return agent.node.metrics.GetCounter("kvfabric_agent_peer_refused_total", "").Value();
}

// Waits for the link's own judgement.
bool WaitFor(const PeerLink& link, bool up, milliseconds within = milliseconds(5'000)) {
  const auto until = std::chrono::steady_clock::now() + within * TimeScale();
  while (std::chrono::steady_clock::now() < until) {
    if (link.up() == up) return true;
    std::this_thread::yield();
  }
  return link.up() == up;
}

TEST(GrpcPeer, OpensASessionAndAnswersEveryRequest) {
  TestAgent a("node-a"), b("node-b", 4711);
  const auto link = a.connector->Connect(b.address());
  ASSERT_TRUE(WaitFor(*link, true));
  EXPECT_EQ(link->identity().node_name, "node-b");
  EXPECT_EQ(link->identity().boot_epoch, 4711U);
  EXPECT_EQ(b.node.last_peer.node_name, "node-a");
  EXPECT_EQ(b.node.last_peer.boot_epoch, 100U);

  const KeyId x = TestHeader("x").id, y = TestHeader("y").id;
  b.node.Put(TestHeader("x"), "bytes of x");

  Waiter<AnnounceReply> announced;
  AnnounceRequest announce;
  announce.pool_uid = "p1";
  announce.sequence = 13;
  announce.added = {{x, 5}, {y, 6}};
  announce.removed = {y};
  link->Announce(announce, In(2'000), announced.Completion());
  const auto announce_reply = announced.Wait();
  ASSERT_TRUE(announce_reply.ok()) << announce_reply.status().ToString();
  EXPECT_TRUE(announce_reply->resync);
  EXPECT_THAT(announce_reply->has_other_holder, ElementsAre(x, y));

  Waiter<LocateReply> located;
  LocateRequest locate;
  locate.pool_uid = "p1";
  locate.map_epoch = 2;
  locate.keys = {{x, 1}, {y, 2}, {x, 3}};
  link->Locate(locate, In(2'000), located.Completion());
  const auto locate_reply = located.Wait();
  ASSERT_TRUE(locate_reply.ok());
  EXPECT_THAT(locate_reply->holders,
              ElementsAre(ElementsAre(), ElementsAre("node-0"), ElementsAre("node-0", "node-1")));
  Waiter<LocateReply> stale;
  locate.map_epoch = 1;
  link->Locate(locate, In(2'000), stale.Completion());
  EXPECT_EQ(stale.Wait().status().code(), StatusCode::kAborted);

  Waiter<LeaseReply> leased;
  link->Lease({"p1", {x, y}}, In(2'000), leased.Completion());
  const auto lease = leased.Wait();
  ASSERT_TRUE(lease.ok());
  EXPECT_THAT(lease->granted, ElementsAre(true, false));
  EXPECT_THAT(lease->lengths, ElementsAre(10U, 0U));
  EXPECT_EQ(lease->lease_id, 41U);
  link->Release({41});
  EXPECT_TRUE(b.node.released.WaitFor(1));

  Waiter<OfferReply> offered;
  OfferRequest offer;
  offer.pool_uid = "p1";
  offer.reason = OfferReason::kReplica;
  offer.ids = {x, y};
  offer.lengths = {1, 2};
  offer.ages = {std::chrono::microseconds(1), std::chrono::microseconds(2)};
  link->Offer(offer, In(2'000), offered.Completion());
  EXPECT_THAT(offered.Wait()->answers, ElementsAre(OfferAnswer::kHasIt, OfferAnswer::kPush));

  Waiter<std::string> map;
  link->FetchMap("p1", In(2'000), map.Completion());
  EXPECT_EQ(*map.Wait(), "map of p1");
  Waiter<std::uint32_t> deleted;
  link->Delete({"p1", {x, y}}, In(2'000), deleted.Completion());
  EXPECT_EQ(*deleted.Wait(), 1U);

  ASSERT_TRUE(b.node.keepalives.WaitFor(2));
  EXPECT_EQ(link->peer_state().inflight_bytes, 99U);
}

TEST(GrpcPeer, FetchesAndPushesOverTheBulkConnections) {
  TestAgent a("node-a"), b("node-b");
  const auto link = a.connector->Connect(b.address());
  ASSERT_TRUE(WaitFor(*link, true));
  const std::string bytes = RandomBytes(900'000, 1);
  b.node.Put(TestHeader("there"), bytes);
  Waiter<FetchResult> fetched;
  link->Fetch("p1", 41, {{TestHeader("there").id}}, a.node.Sink(), In(5'000), fetched.Completion());
  auto result = fetched.Wait();
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_TRUE(result->blocks[0]);
  EXPECT_EQ(AsText(result->blocks[0]->bytes()), bytes);

  const PinnedBlock mine = a.node.Put(TestHeader("mine"), bytes);
  Waiter<PushResult> pushed;
  link->Push("p1", OfferReason::kReplica, {mine}, In(5'000), pushed.Completion());
  EXPECT_TRUE(pushed.Wait()->stored[0]);
  EXPECT_EQ(AsText(b.node.engine->PinById(mine.header().id)->bytes()), bytes);
}

TEST(GrpcPeer, RefusesAnotherIdentityBehindAReusedPort) {
  TestAgent a("node-a"), b("node-b");
  PeerAddress wrong_name = b.address();
  wrong_name.node_name = "node-c";
  PeerAddress wrong_uid = b.address();
  wrong_uid.agent_uid = "uid-of-old-run";
  const auto by_name = a.connector->Connect(wrong_name);
  const auto by_uid = a.connector->Connect(wrong_uid);
  EXPECT_FALSE(WaitFor(*by_name, true, milliseconds(300)));
  EXPECT_FALSE(by_uid->up());
  EXPECT_EQ(b.node.sessions.value(), 0);
  EXPECT_EQ(by_uid->identity().boot_epoch, 0U);
  Waiter<std::string> map;
  by_name->FetchMap("p1", In(1'000), map.Completion());
  EXPECT_EQ(map.Wait().status().code(), StatusCode::kUnavailable);
}

TEST(GrpcPeer, RefusesWhoIsNoAgent) {
  TestAgent b("node-b");
  const auto stub = v1::Peer::NewStub(TestChannel(b.server->port()));
  for (const auto& [token, code] :
       {std::pair<std::string, grpc::StatusCode>{"nonsense", grpc::StatusCode::UNAUTHENTICATED},
        {"token-blue", grpc::StatusCode::PERMISSION_DENIED}}) {
    grpc::ClientContext context;
    SetToken(context, token);
    const auto stream = stub->Session(&context);
    v1::PeerReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_EQ(stream->Finish().error_code(), code);
  }
  // The right token, but nonsense on the stream.
  grpc::ClientContext context;
  SetToken(context, "token-admin");
  const auto stream = stub->Session(&context);
  v1::PeerRequest request;
  request.set_request_id(1);
  request.mutable_lease()->set_key_ids("not 16 bytes");
  stream->Write(request);
  v1::PeerReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Refused(b), 1);
}

TEST(GrpcPeer, AnswersMalformedRequestsAndGoesOn) {
  TestAgent b("node-b");
  const auto stub = v1::Peer::NewStub(TestChannel(b.server->port()));
  grpc::ClientContext context;
  SetToken(context, "token-admin");
  const auto stream = stub->Session(&context);
  v1::PeerRequest request = HelloOfNodeA();
  stream->Write(request);
  v1::PeerReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.hello().bulk_token().size(), 16U);
  EXPECT_EQ(reply.hello().bulk_port(), b.bulk->port());

  std::vector<v1::PeerRequest> bad(4);
  bad[0].mutable_lease()->set_key_ids("odd");
  bad[1].mutable_locate()->set_key_ids(std::string(32, 'k'));  // without slots
  bad[2].mutable_announce()->set_added(std::string(19, 'a'));
  bad[3].mutable_offer()->set_key_ids(std::string(16, 'k'));  // without lengths
  std::uint64_t id = 2;
  for (v1::PeerRequest& one : bad) {
    one.set_request_id(id);
    stream->Write(one);
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.request_id(), id++);
    EXPECT_EQ(reply.code(), 3U) << reply.message();
  }
  v1::PeerRequest unknown;  // as one of a newer agent looks here
  unknown.set_request_id(id);
  stream->Write(unknown);
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.code(), 12U);
  EXPECT_EQ(b.node.announced.value(), 0);
  EXPECT_EQ(Refused(b), 5);
  stream->Write(request);  // a second hello
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.code(), 3U);
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Refused(b), 6);
  EXPECT_TRUE(b.node.closed.WaitFor(1));
}

TEST(GrpcPeer, SaysItsEpochToWhoHasAnOlderMap) {
  TestAgent b("node-b");
  const auto stub = v1::Peer::NewStub(TestChannel(b.server->port()));
  grpc::ClientContext context;
  SetToken(context, "token-admin");
  const auto stream = stub->Session(&context);
  v1::PeerRequest request = HelloOfNodeA();
  stream->Write(request);
  v1::PeerReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  request.set_request_id(2);
  request.mutable_locate()->set_pool_uid("p1");
  request.mutable_locate()->set_map_epoch(1);
  stream->Write(request);
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.code(), 10U);
  EXPECT_EQ(reply.map_epoch(), 2U);
  context.TryCancel();
  stream->Finish();
}

TEST(GrpcPeer, EndsTheSessionOfAnOpenerThatFellSilent) {
  TestAgent b("node-b", 100, milliseconds(200));
  const auto stub = v1::Peer::NewStub(TestChannel(b.server->port()));
  grpc::ClientContext context;
  SetToken(context, "token-admin");
  const auto stream = stub->Session(&context);
  v1::PeerRequest request = HelloOfNodeA();
  stream->Write(request);
  v1::PeerReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_TRUE(b.node.closed.WaitFor(1));  // and with it go the leases
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(GrpcPeer, EndsTheSessionWithItsStream) {
  TestAgent a("node-a"), b("node-b");
  auto link = a.connector->Connect(b.address());
  ASSERT_TRUE(WaitFor(*link, true));
  EXPECT_EQ(b.service->sessions(), 1U);
  link.reset();
  EXPECT_TRUE(b.node.closed.WaitFor(1));
  EXPECT_EQ(b.node.closed.value(), 1);
  EXPECT_EQ(b.service->sessions(), 0U);
}

TEST(GrpcPeer, ComesBackWithTheNewBootEpoch) {
  TestAgent a("node-a");
  auto b = std::make_unique<TestAgent>("node-b", 1);
  const PeerAddress address = b->address();
  const auto link = a.connector->Connect(address);
  ASSERT_TRUE(WaitFor(*link, true));
  b.reset();
  ASSERT_TRUE(WaitFor(*link, false, milliseconds(1'500)));
  EXPECT_EQ(link->identity().boot_epoch, 0U);
  b = std::make_unique<TestAgent>("node-b", 2);
  b->server.reset();
  b->StartServer(address.grpc_port);
  ASSERT_TRUE(WaitFor(*link, true));
  EXPECT_EQ(link->identity().boot_epoch, 2U);
}

// A peer that accepts the session and then falls silent, as one under SIGSTOP does.
class SilentPeer final : public v1::Peer::Service {
 public:
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::PeerReply, v1::PeerRequest>* stream) override {
    v1::PeerRequest request;
    while (stream->Read(&request)) {
      v1::PeerReply reply;
      reply.set_request_id(request.request_id());
      if (request.has_hello()) {
        reply.mutable_hello()->set_boot_epoch(5);
        reply.mutable_hello()->set_bulk_token(std::string(16, 't'));
        reply.mutable_hello()->set_bulk_port(1);
        stream->Write(reply);
      } else if (request.has_keepalive() && answering.load()) {
        reply.mutable_keepalive();
        stream->Write(reply);
      } else if (request.has_lease()) {
        leases.Add();
      } else if (request.has_release()) {
        released.Add();
      }
      if (request.has_map()) {  // answer the lease that was asked before, too late
        reply.set_request_id(request.request_id() - 1);
        reply.mutable_lease()->set_lease_id(77);
        stream->Write(reply);
      }
    }
    return grpc::Status::OK;
  }
  std::atomic<bool> answering = true;
  Tally leases, released;
};

TEST(GrpcPeer, JudgesASilentPeerDownWithinABoundedTime) {
  SilentPeer silent;
  auto server = std::move(*GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&silent}));
  TestAgent a("node-a");
  auto link = a.connector->Connect({"node-b", "uid", "127.0.0.1", server->port()});
  ASSERT_TRUE(WaitFor(*link, true));
  // Answered keepalives keep it up for longer than the bound.
  EXPECT_FALSE(WaitFor(*link, false, milliseconds(1'300)));

  silent.answering = false;
  const auto began = std::chrono::steady_clock::now();
  Waiter<LeaseReply> leased;
  link->Lease({"p1", {TestHeader("x").id}}, In(60'000), leased.Completion());
  EXPECT_EQ(leased.Wait().status().code(), StatusCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1'500) * TimeScale());
  EXPECT_FALSE(link->up());
  Waiter<LeaseReply> refused;
  link->Lease({"p1", {}}, In(60'000), refused.Completion());
  EXPECT_TRUE(refused.done());  // at once: nobody waits for a peer that is down
  link.reset();
  server.reset();
}

TEST(GrpcPeer, KeepsDeadlinesAndReleasesLeasesThatCameTooLate) {
  SilentPeer silent;
  auto server = std::move(*GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&silent}));
  TestAgent a("node-a");
  auto link = a.connector->Connect({"node-b", "uid", "127.0.0.1", server->port()});
  ASSERT_TRUE(WaitFor(*link, true));
  const auto began = std::chrono::steady_clock::now();
  Waiter<LeaseReply> leased;
  link->Lease({"p1", {TestHeader("x").id}}, In(50), leased.Completion());
  EXPECT_EQ(leased.Wait().status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(150) * TimeScale());
  Waiter<std::string> map;
  link->FetchMap("p1", In(50), map.Completion());  // makes the peer answer the lease
  EXPECT_TRUE(silent.released.WaitFor(1));
  EXPECT_FALSE(map.Wait().ok());
  link.reset();
  server.reset();
}

TEST(GrpcPeer, CompletesWhatIsUnderWayWhenTheLinkGoes) {
  SilentPeer silent;
  auto server = std::move(*GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&silent}));
  TestAgent a("node-a");
  auto link = a.connector->Connect({"node-b", "uid", "127.0.0.1", server->port()});
  ASSERT_TRUE(WaitFor(*link, true));
  Waiter<LeaseReply> leased;
  link->Lease({"p1", {TestHeader("x").id}}, In(60'000), leased.Completion());
  Waiter<FetchResult> fetched;
  link->Fetch("p1", 1, {{TestHeader("x").id}}, a.node.Sink(), In(60'000), fetched.Completion());
  link.reset();
  ASSERT_TRUE(leased.done());
  EXPECT_EQ(leased.Wait().status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(fetched.done());
  EXPECT_EQ(fetched.Wait().status().code(), StatusCode::kUnavailable);
  server.reset();
}

TEST(GrpcPeer, StaysDownWhereNobodyListens) {
  TestAgent a("node-a");
  const auto link = a.connector->Connect({"node-b", "uid", "127.0.0.1", 1});
  EXPECT_FALSE(WaitFor(*link, true, milliseconds(300)));
}

}  // namespace
}  // namespace kvfabric
