// Cache as a generated client of any language sees it.

#include "agent/service/grpc_cache_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "agent/service/grpc_server.h"
#include "common/checksum.h"
#include "kvfabric/v1/cache.grpc.pb.h"
#include "tests/fakes/fake_fabric.h"
#include "tests/fakes/manual_executor.h"
#include "tests/service/tally.h"
#include "tests/service/test_channel.h"

namespace kvfabric {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Agent {
  MetricsRegistry metrics;
  FakeFabric fabric;
  WorkerPool executor{"grpc", 2, 256};
  std::unique_ptr<GrpcCacheService> service;
  std::unique_ptr<GrpcServer> server;

  explicit Agent(GrpcCacheService::Options options = {}, Executor* on = nullptr) {
    options.node_name = "node-0";
    options.tenant_of_token = TestTenantOfToken;
    GrpcCacheService::Environment environment;
    environment.fabric = &fabric;
    environment.executor = on != nullptr ? on : &executor;
    environment.clock = &Clock::System();
    environment.metrics = &metrics;
    service = std::make_unique<GrpcCacheService>(std::move(options), environment);
    service->SetServing(true);
    auto started = GrpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service->service()});
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server = std::move(*started);
  }
};

// A client with an open session.
class Client {
 public:
  Client(const Agent& agent, const std::string& tenant)
      : token_("token-" + tenant), stub_(v1::Cache::NewStub(TestChannel(agent.server->port()))) {
    SetToken(session_context_, token_);
    session_ = stub_->Session(&session_context_);
    v1::SessionReply reply;
    if (session_->Read(&reply)) {
      id_ = reply.session_id();
      boot_epoch_ = reply.boot_epoch();
    }
  }
  ~Client() { End(); }
  grpc::Status End() {
    if (ended_) return grpc::Status::OK;
    ended_ = true;
    session_->WritesDone();
    v1::SessionReply reply;
    while (session_->Read(&reply)) {
    }
    return session_->Finish();
  }

  const std::string& id() const { return id_; }
  std::uint64_t boot_epoch() const { return boot_epoch_; }
  v1::Cache::Stub& stub() { return *stub_; }
  void Authorize(grpc::ClientContext& context) const { Authorize(context, token_, id_); }
  static void Authorize(grpc::ClientContext& context, const std::string& token,
                        const std::string& id) {
    SetToken(context, token);
    context.AddMetadata("kvfabric-session", id);
  }

  grpc::Status Put(const v1::PutRequest& request, v1::PutReply* reply) {
    grpc::ClientContext context;
    Authorize(context);
    return stub_->Put(&context, request, reply);
  }
  grpc::Status Get(const v1::GetRequest& request, v1::GetReply* reply) {
    grpc::ClientContext context;
    Authorize(context);
    return stub_->Get(&context, request, reply);
  }
  grpc::Status Lookup(const v1::LookupRequest& request, v1::LookupReply* reply) {
    grpc::ClientContext context;
    Authorize(context);
    return stub_->Lookup(&context, request, reply);
  }

 private:
  const std::string token_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionReply>> session_;
  std::string id_;
  std::uint64_t boot_epoch_ = 0;
  bool ended_ = false;
};

std::string Bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

template <typename Request>
void Name(Request& request, std::size_t first, std::size_t count,
          v1::NamespaceKind kind = v1::NAMESPACE_KIND_CHAIN) {
  request.set_remaining_ms(5'000);
  request.mutable_ns()->set_pool("default/pool");
  request.mutable_ns()->set_fingerprint("model=m\n");
  request.mutable_ns()->set_kind(kind);
  request.mutable_range()->set_first(static_cast<std::uint32_t>(first));
  for (std::size_t i = first; i < first + count; ++i) {
    request.mutable_range()->add_keys("key-" + std::to_string(i));
  }
}

v1::PutRequest PutOf(const std::vector<std::string>& blocks) {
  v1::PutRequest request;
  Name(request, 0, blocks.size());
  for (const std::string& bytes : blocks) {
    v1::PutBlock& block = *request.add_blocks();
    block.set_checksum(BlockChecksum(AsBytes(bytes)));
    block.set_metadata("meta of " + std::to_string(bytes.size()));
    block.set_data(bytes);
  }
  return request;
}

TEST(GrpcCacheService, ReturnsExactlyWhatWasPut) {
  Agent agent;
  Client client(agent, "blue");
  EXPECT_EQ(client.id().size(), 32U);
  EXPECT_EQ(client.boot_epoch(), FakeFabric::kBootEpoch);
  // Smaller than a slice of its own, of several pieces, of odd sizes.
  const std::vector<std::string> blocks = {Bytes(1, 1), Bytes(511, 2), Bytes(512, 3),
                                           Bytes(700'001, 4), Bytes(1 << 20, 5)};
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf(blocks), &put).ok());
  EXPECT_EQ(put.boot_epoch(), FakeFabric::kBootEpoch);
  EXPECT_EQ(put.map_epoch(), FakeFabric::kMapEpoch);
  EXPECT_THAT(put.copies(), ElementsAre(1, 1, 1, 1, 1));

  v1::GetRequest request;
  Name(request, 0, 6);
  v1::GetReply reply;
  ASSERT_TRUE(client.Get(request, &reply).ok());
  EXPECT_EQ(reply.boot_epoch(), FakeFabric::kBootEpoch);
  ASSERT_EQ(reply.blocks_size(), 6);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(reply.blocks(i).found());
    EXPECT_EQ(reply.blocks(i).data(), blocks[static_cast<std::size_t>(i)]) << i;
    EXPECT_EQ(reply.blocks(i).checksum(), BlockChecksum(AsBytes(reply.blocks(i).data())));
    EXPECT_EQ(reply.blocks(i).metadata(),
              "meta of " + std::to_string(blocks[static_cast<std::size_t>(i)].size()));
  }
  EXPECT_FALSE(reply.blocks(5).found());
  EXPECT_EQ(agent.fabric.leases(), 0U) << "a Get without a lease leaves none behind";
  request.set_lease_id(4'711);
  ASSERT_TRUE(client.Get(request, &reply).ok());
  EXPECT_TRUE(reply.blocks(0).found());
  EXPECT_EQ(agent.fabric.leases(), 0U) << "nor one whose lease has ended";

  ASSERT_TRUE(client.Put(PutOf(blocks), &put).ok());
  EXPECT_THAT(put.status(), testing::Each(v1::PUT_STATUS_ALREADY_EXISTS));
}

TEST(GrpcCacheService, DropsThePinsOnceTheReplyIsWritten) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf({Bytes(1 << 20, 1)}), &put).ok());
  v1::GetRequest request;
  Name(request, 0, 1);
  for (int i = 0; i < 50; ++i) {
    v1::GetReply reply;
    ASSERT_TRUE(client.Get(request, &reply).ok());
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (agent.fabric.engine().Stats().pinned_bytes > 0 &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(agent.fabric.engine().Stats().pinned_bytes, 0U);
}

TEST(GrpcCacheService, RefusesBlocksWhoseChecksumIsWrongOrMissing) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutRequest request = PutOf({Bytes(100, 1), Bytes(200'000, 2)});
  request.mutable_blocks(1)->set_checksum(request.blocks(1).checksum() + 1);
  v1::PutReply put;
  ASSERT_TRUE(client.Put(request, &put).ok());
  EXPECT_THAT(put.status(), ElementsAre(v1::PUT_STATUS_OK, v1::PUT_STATUS_CHECKSUM_MISMATCH));
  v1::GetRequest get;
  Name(get, 0, 2);
  v1::GetReply reply;
  ASSERT_TRUE(client.Get(get, &reply).ok());
  EXPECT_TRUE(reply.blocks(0).found());
  EXPECT_FALSE(reply.blocks(1).found());

  request.mutable_blocks(1)->clear_checksum();
  const grpc::Status status = client.Put(request, &put);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("checksum"));
}

TEST(GrpcCacheService, LeasesWhatLookupSaysYesTo) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf({"a", "b"}), &put).ok());
  v1::LookupRequest request;
  Name(request, 0, 3);
  v1::LookupReply lookup;
  ASSERT_TRUE(client.Lookup(request, &lookup).ok());
  EXPECT_EQ(lookup.hits(), 2U);
  EXPECT_EQ(lookup.local(), 2U);
  EXPECT_EQ(lookup.lease_ms(), 10'000U);
  EXPECT_NE(lookup.lease_id(), 0U);
  EXPECT_EQ(agent.fabric.leases(), 1U);

  // The same keys in another lane: both lanes must have a block.
  request.add_lanes()->set_rank(65535);
  request.add_lanes()->set_rank(1);
  v1::LookupReply lanes;
  ASSERT_TRUE(client.Lookup(request, &lanes).ok());
  EXPECT_EQ(lanes.hits(), 0U);
  EXPECT_EQ(lanes.miss_reason(), "not_found");

  v1::GetRequest get;
  Name(get, 0, 2);
  get.set_lease_id(lookup.lease_id());
  v1::GetReply reply;
  ASSERT_TRUE(client.Get(get, &reply).ok());
  EXPECT_EQ(agent.fabric.leases(), 1U) << "the caller's lease is the caller's to release";

  v1::ReleaseRequest release;
  release.add_lease_ids(lookup.lease_id());
  v1::ReleaseReply released;
  grpc::ClientContext context;
  client.Authorize(context);
  ASSERT_TRUE(client.stub().Release(&context, release, &released).ok());
  EXPECT_EQ(agent.fabric.leases(), 0U);
}

TEST(GrpcCacheService, AnswersSingleKeysEachOnItsOwn) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutRequest put = PutOf({"a", "b", "c"});
  put.mutable_ns()->set_kind(v1::NAMESPACE_KIND_SINGLE);
  put.mutable_range()->mutable_keys()->erase(put.range().keys().begin() + 1);
  put.mutable_blocks()->erase(put.blocks().begin() + 1);
  v1::PutReply reply;
  ASSERT_TRUE(client.Put(put, &reply).ok());
  v1::LookupRequest request;
  Name(request, 0, 3, v1::NAMESPACE_KIND_SINGLE);
  v1::LookupReply lookup;
  ASSERT_TRUE(client.Lookup(request, &lookup).ok());
  EXPECT_THAT(lookup.found(), ElementsAre(true, false, true));
  v1::GetRequest get;
  Name(get, 0, 3, v1::NAMESPACE_KIND_SINGLE);
  v1::GetReply got;
  ASSERT_TRUE(client.Get(get, &got).ok());
  EXPECT_EQ(got.blocks(0).data(), "a");
  EXPECT_FALSE(got.blocks(1).found());
  EXPECT_EQ(got.blocks(2).data(), "c");
}

TEST(GrpcCacheService, TakesTheTenantFromTheConnectionOnly) {
  Agent agent;
  Client blue(agent, "blue"), green(agent, "green");
  v1::PutReply put;
  ASSERT_TRUE(blue.Put(PutOf({"secret"}), &put).ok());
  v1::GetRequest get;
  Name(get, 0, 1);
  v1::GetReply reply;
  ASSERT_TRUE(green.Get(get, &reply).ok());
  EXPECT_FALSE(reply.blocks(0).found());

  // A session is worth nothing with another token, and neither is a token without a session.
  for (const auto& [token, id] : {std::pair<std::string, std::string>{"token-green", blue.id()},
                                  {"token-blue", ""},
                                  {"", blue.id()},
                                  {"token-blue", std::string(32, '0')}}) {
    grpc::ClientContext context;
    Client::Authorize(context, token, id);
    EXPECT_EQ(green.stub().Get(&context, get, &reply).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST(GrpcCacheService, EndsTheSessionWithItsStream) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf({"a"}), &put).ok());
  v1::LookupRequest request;
  Name(request, 0, 1);
  v1::LookupReply lookup;
  ASSERT_TRUE(client.Lookup(request, &lookup).ok());
  EXPECT_EQ(agent.fabric.open_sessions(), 1U);
  EXPECT_EQ(agent.fabric.leases(), 1U);
  EXPECT_TRUE(client.End().ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (agent.fabric.open_sessions() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(agent.fabric.open_sessions(), 0U);
  EXPECT_EQ(agent.fabric.leases(), 0U);
  EXPECT_EQ(client.Lookup(request, &lookup).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// What is queued when the agent stops finds the Fabric gone.
TEST(GrpcCacheService, TouchesNoFabricOnceItIsGone) {
  ManualExecutor executor;
  Agent agent({}, &executor);
  Client client(agent, "blue");
  ASSERT_EQ(agent.fabric.open_sessions(), 1U);
  client.End();
  agent.server.reset();
  agent.service.reset();
  EXPECT_EQ(executor.RunAll(), 1U);
  EXPECT_EQ(agent.fabric.open_sessions(), 1U) << "the Fabric ends it when it goes";
}

TEST(GrpcCacheService, BoundsSessions) {
  GrpcCacheService::Options options;
  options.max_sessions = 2;
  Agent agent(std::move(options));
  Client first(agent, "blue"), second(agent, "blue"), third(agent, "blue");
  EXPECT_EQ(third.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(agent.fabric.open_sessions(), 2U);
  first.End();
}

TEST(GrpcCacheService, CutsRepliesAtTheByteBoundInsteadOfFailing) {
  GrpcCacheService::Options options;
  options.max_reply_bytes = 1000;
  Agent agent(std::move(options));
  Client client(agent, "blue");
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf({Bytes(600, 1), Bytes(600, 2), Bytes(1, 3)}), &put).ok());
  v1::GetRequest get;
  Name(get, 0, 3);
  v1::GetReply reply;
  ASSERT_TRUE(client.Get(get, &reply).ok());
  EXPECT_TRUE(reply.blocks(0).found());
  EXPECT_FALSE(reply.blocks(1).found());
  EXPECT_FALSE(reply.blocks(2).found());
}

TEST(GrpcCacheService, NamesWhatIsWrongInARequest) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutReply put;
  v1::PutRequest request = PutOf({"a", "b"});
  request.mutable_blocks()->RemoveLast();
  EXPECT_THAT(client.Put(request, &put).error_message(), HasSubstr("1 blocks for 2 keys"));
  request = PutOf({"a"});
  request.mutable_range()->set_keys(0, std::string(513, 'k'));
  EXPECT_THAT(client.Put(request, &put).error_message(), HasSubstr("513 bytes"));
  request = PutOf({"a"});
  request.mutable_lane()->set_rank(70'000);
  EXPECT_THAT(client.Put(request, &put).error_message(), HasSubstr("lane"));
  request = PutOf({"a"});
  request.mutable_ns()->set_pool("default/other");
  EXPECT_EQ(client.Put(request, &put).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::GetRequest get;
  Name(get, 0, 0);
  v1::GetReply reply;
  EXPECT_THAT(client.Get(get, &reply).error_message(), HasSubstr("0 keys"));
}

TEST(GrpcCacheService, TellsStatOfTheTenantsPools) {
  Agent agent;
  Client client(agent, "blue");
  v1::PutReply put;
  ASSERT_TRUE(client.Put(PutOf({"a", "b"}), &put).ok());
  grpc::ClientContext context;
  client.Authorize(context);
  v1::StatReply stat;
  ASSERT_TRUE(client.stub().Stat(&context, {}, &stat).ok());
  EXPECT_EQ(stat.node(), "node-0");
  ASSERT_EQ(stat.pools_size(), 1);
  EXPECT_EQ(stat.pools(0).blocks(), 2U);
  EXPECT_EQ(stat.pools(0).counters().at("puts"), 2.0);

  v1::DeleteRequest erase;
  Name(erase, 0, 2);
  v1::DeleteReply erased;
  grpc::ClientContext second;
  client.Authorize(second);
  ASSERT_TRUE(client.stub().Delete(&second, erase, &erased).ok());
  EXPECT_EQ(erased.deleted(), 2U);
}

TEST(GrpcCacheService, RefusesUntilItServes) {
  Agent agent;
  agent.service->SetServing(false);
  Client client(agent, "blue");
  EXPECT_EQ(client.End().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace kvfabric
