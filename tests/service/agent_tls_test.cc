// Agents over mTLS in one process: certification, identities, renewal and a new CA under load.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "agent/service/agent_process.h"
#include "api/grpc_tls.h"
#include "common/checksum.h"
#include "kvfabric/v1/cache.grpc.pb.h"
#include "kvfabric/v1/control.grpc.pb.h"
#include "kvfabric/v1/peer.grpc.pb.h"
#include "placement/shard_map.h"
#include "placement/shard_map_codec.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_authority.h"
#include "tests/fakes/test_seed.h"
#include "tests/service/test_channel.h"

namespace kvfabric {
namespace {

using Role = CertificateIdentity::Role;
using ::testing::HasSubstr;

bool WaitUntil(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10) * TimeScale();
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return condition();
}

std::shared_ptr<grpc::Channel> ChannelTo(const AgentProcess& agent,
                                         const std::shared_ptr<grpc::ChannelCredentials>& with) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(FormatAddress(agent.endpoints().grpc), with, arguments);
}

// What the operator does for one agent; signs with `ca`.
class Operator {
 public:
  Operator(const AgentProcess& agent, const TestAuthority& ca, const std::string& node)
      : stub_(v1::Control::NewStub(ChannelTo(
            agent,
            MakeChannelCredentials(*ca.Material({Role::kOperator, ""}),
                                   {{Role::kBootstrap, ""}, CertificateIdentity::Agent(node)})))) {
    stream_ = stub_->Session(&context_);
    v1::ControlDown hello;
    hello.mutable_hello()->set_version(1);
    hello.mutable_hello()->set_operator_id("test");
    hello.mutable_hello()->set_heartbeat_ms(20);
    Send(hello);
  }
  ~Operator() {
    context_.TryCancel();
    stream_->Finish();
  }
  // The next message for which `wanted` holds; others are dropped.
  v1::ControlUp Next(const std::function<bool(const v1::ControlUp&)>& wanted) {
    v1::ControlUp up;
    do {
      if (!stream_->Read(&up)) {
        ADD_FAILURE() << "the control stream ended";
        return {};
      }
      if (up.has_certificate_request()) request_ = up.certificate_request().request();
    } while (!wanted(up));
    return up;
  }
  std::string NextRequest() {
    if (request_.empty()) Next([](const auto& up) { return up.has_certificate_request(); });
    return std::exchange(request_, {});
  }
  // Why the last order was refused; empty when it was taken.
  std::string Answer() {
    return Next([](const auto& up) {
             return !up.has_heartbeat() && !up.has_certificate_request() && !up.has_hello();
           })
        .refused();
  }
  std::string Give(const std::string& certificate, const std::string& trusted) {
    v1::ControlDown down;
    down.mutable_certificate()->set_certificate(certificate);
    down.mutable_certificate()->set_trusted(trusted);
    Send(down);
    return Answer();
  }
  // Signs the agent's request for `node`.
  std::string Certify(const TestAuthority& ca, const std::string& node, std::int64_t age_s = 2,
                      const std::string& trusted = "") {
    const std::int64_t now = std::time(nullptr);
    const auto made = SignCertificate(
        ca.pair(), NextRequest(),
        {CertificateIdentity::Agent(node), {}, {"127.0.0.1"}, {now - age_s, now + 3'600}});
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return Give(*made, trusted.empty() ? ca.trusted() : trusted);
  }
  v1::TlsReport Report() {
    return Next([](const auto& up) { return up.has_heartbeat(); }).heartbeat().tls();
  }
  std::string GivePool() {
    v1::ControlDown down;
    v1::PoolConfig& pool = *down.mutable_pools()->add_pools();
    pool.set_uid("pool-uid");
    pool.set_name("default/pool");
    pool.set_generation(1);
    pool.set_dram_capacity_bytes(8 << 20);
    pool.set_high_watermark_percent(90);
    pool.set_low_watermark_percent(80);
    pool.set_slots(16'384);
    pool.set_replicas(1);
    pool.set_lookup_deadline_ms(2'000);
    Send(down);
    return Answer();
  }
  std::string GiveMap(const ShardMap& map) {
    v1::ControlDown down;
    down.mutable_map()->set_pool_uid("pool-uid");
    down.mutable_map()->set_shard_map(std::string(AsText(*SerializeShardMap(map))));
    Send(down);
    return Answer();
  }

 private:
  void Send(v1::ControlDown down) {
    down.set_term(1);
    stream_->Write(down);
  }
  std::string request_;  // the last one, until it is answered
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlDown, v1::ControlUp>> stream_;
};

// A generic client with a token inside TLS, or with a certificate.
class Client {
 public:
  Client(const AgentProcess& agent, const TlsMaterial& material, std::string token)
      : token_(std::move(token)),
        stub_(v1::Cache::NewStub(
            ChannelTo(agent, MakeChannelCredentials(material, {CertificateIdentity::Agent("a"),
                                                               CertificateIdentity::Agent("b"),
                                                               {Role::kBootstrap, ""}})))) {
    if (!token_.empty()) session_context_.AddMetadata("authorization", "Bearer " + token_);
    session_ = stub_->Session(&session_context_);
    v1::SessionReply reply;
    open_ = session_->Read(&reply);
    id_ = reply.session_id();
    if (!open_) end_ = session_->Finish();
  }
  ~Client() {
    session_context_.TryCancel();
    if (open_) session_->Finish();
  }
  bool open() const { return open_; }
  const grpc::Status& end() const { return end_; }
  bool Put(const std::string& key, const std::string& bytes) {
    v1::PutRequest request;
    Name(*request.mutable_ns(), *request.mutable_range(), key);
    request.set_remaining_ms(5'000);
    request.add_blocks()->set_data(bytes);
    request.mutable_blocks(0)->set_checksum(BlockChecksum(AsBytes(bytes)));
    v1::PutReply reply;
    grpc::ClientContext context;
    Authorize(context);
    return stub_->Put(&context, request, &reply).ok() && reply.status(0) == v1::PUT_STATUS_OK;
  }
  // The bytes; empty for a miss, "error ..." when the call failed.
  std::string Get(const std::string& key) {
    v1::GetRequest request;
    Name(*request.mutable_ns(), *request.mutable_range(), key);
    request.set_remaining_ms(5'000);
    v1::LookupRequest lookup;
    *lookup.mutable_ns() = request.ns();
    *lookup.mutable_range() = request.range();
    lookup.set_remaining_ms(5'000);
    v1::LookupReply found;
    grpc::ClientContext lookup_context;
    Authorize(lookup_context);
    const grpc::Status looked = stub_->Lookup(&lookup_context, lookup, &found);
    if (!looked.ok()) return "error " + looked.error_message();
    if (found.hits() == 0) return "";
    request.set_lease_id(found.lease_id());
    v1::GetReply reply;
    grpc::ClientContext context;
    Authorize(context);
    const grpc::Status got = stub_->Get(&context, request, &reply);
    if (!got.ok()) return "error " + got.error_message();
    return reply.blocks(0).data();
  }

 private:
  template <typename Namespace, typename Range>
  static void Name(Namespace& ns, Range& range, const std::string& key) {
    ns.set_pool("default/pool");
    ns.set_fingerprint("model=m\n");
    range.add_keys(key);
  }
  void Authorize(grpc::ClientContext& context) const {
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.AddMetadata("kvfabric-session", id_);
  }

  const std::string token_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionReply>> session_;
  bool open_ = false;
  grpc::Status end_;
  std::string id_;
};

class AgentTlsTest : public ::testing::Test {
 protected:
  AgentTlsTest() {
    std::filesystem::create_directories(dir_.path() / "tls");
    WriteBootstrap(ca_, ca_.trusted());
    const auto tokens = dir_.path() / "tokens";
    std::ofstream(tokens) << "admin token-admin\nblue token-blue\n";
    ::chmod(tokens.c_str(), 0600);
  }
  void WriteBootstrap(const TestAuthority& ca, const std::string& trusted) {
    const CertifiedKey pair = ca.Issue({Role::kBootstrap, ""});
    std::ofstream(dir_.path() / "tls" / "tls.key") << pair.key_pem;
    std::ofstream(dir_.path() / "tls" / "tls.crt") << pair.certificate_pem;
    std::ofstream(dir_.path() / "tls" / "ca.crt") << trusted;
  }
  std::unique_ptr<AgentProcess> Start(const std::string& node) {
    AgentConfig config;
    config.node_name = node;
    config.state_dir = dir_.path() / node;
    config.socket_path = dir_.path() / (node + ".sock");
    config.tokens_file = dir_.path() / "tokens";
    config.tls_bootstrap_dir = dir_.path() / "tls";
    config.grpc = config.bulk = config.http = {"127.0.0.1", 0};
    config.arena_bytes = std::uint64_t{32} << 20U;
    auto agent = AgentProcess::Start(config, "test", [] {
      std::this_thread::yield();
      return false;
    });
    KVF_CHECK(agent.ok(), "the agent does not start");
    return std::move(*agent);
  }
  static std::string Http(const AgentProcess& agent, const std::string& path) {
    httplib::Client client("127.0.0.1", agent.endpoints().http.port);
    const auto reply = client.Get(path.c_str());
    return reply ? std::to_string(reply->status) + " " + reply->body : "no answer";
  }
  std::shared_ptr<const TlsMaterial> Admin() const { return ca_.Material({Role::kAdmin, ""}); }
  // How a Peer session of this caller that says it is `node` ends; "open" when it does not.
  static std::string PeerAs(const AgentProcess& agent, const TlsMaterial& material,
                            const std::string& node) {
    const auto stub = v1::Peer::NewStub(
        ChannelTo(agent, MakeChannelCredentials(
                             material, {CertificateIdentity::Agent("a"), {Role::kBootstrap, ""}})));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer token-admin");  // worth nothing here
    const auto stream = stub->Session(&context);
    v1::PeerRequest hello;
    hello.set_request_id(1);
    hello.mutable_hello()->set_version(1);
    hello.mutable_hello()->set_node_name(node);
    hello.mutable_hello()->set_agent_uid("uid");
    hello.mutable_hello()->set_boot_epoch(1);
    hello.mutable_hello()->set_expect_node_name("a");
    stream->Write(hello);
    v1::PeerReply reply;
    if (stream->Read(&reply) && reply.has_hello()) {
      context.TryCancel();
      stream->Finish();
      return "open";
    }
    const grpc::Status end = stream->Finish();
    return std::to_string(end.error_code()) + " " + end.error_message();
  }

  TempDir dir_;
  TestAuthority ca_;
};

TEST_F(AgentTlsTest, ServesNobodyUntilItHasItsOwnCertificate) {
  auto agent = Start("a");
  std::string ready;
  EXPECT_TRUE(WaitUntil([&] {
    ready = Http(*agent, "/readyz");
    return ready.find("503 no certificate") == 0;
  })) << ready;
  {
    const Client early(*agent, *Admin(), "token-blue");
    EXPECT_EQ(early.end().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  const auto peer = ca_.Material(CertificateIdentity::Agent("b"));
  EXPECT_THAT(PeerAs(*agent, *peer, "b"), HasSubstr("14 "));
  Operator control(*agent, ca_, "a");
  EXPECT_FALSE(control.Report().own_certificate());
  EXPECT_EQ(control.Certify(ca_, "a"), "");
  EXPECT_TRUE(WaitUntil([&] { return Http(*agent, "/readyz").substr(0, 3) == "200"; }));
  EXPECT_TRUE(WaitUntil([&] { return control.Report().own_certificate(); }));
  EXPECT_EQ(control.Report().trusted(), TrustFingerprint(ca_.trusted()));
  EXPECT_EQ(PeerAs(*agent, *peer, "b"), "open");
  EXPECT_EQ(control.GivePool(), "");
  Client with_token(*agent, *Admin(), "token-blue");
  EXPECT_TRUE(with_token.Put("k", "blue bytes"));
  Client with_certificate(*agent, *ca_.Material({Role::kTenant, "blue"}), "");
  EXPECT_EQ(with_certificate.Get("k"), "blue bytes") << "the same tenant";
  Client admin(*agent, *Admin(), "");
  EXPECT_TRUE(admin.open());
  EXPECT_EQ(admin.Get("k"), "") << "another tenant";

  // Kept over a restart: served at once.
  agent.reset();
  agent = Start("a");
  EXPECT_EQ(PeerAs(*agent, *peer, "b"), "open");
}

TEST_F(AgentTlsTest, EveryPlaneIsForItsOwnCallers) {
  const auto agent = Start("a");
  {
    Operator control(*agent, ca_, "a");
    EXPECT_EQ(control.Certify(ca_, "a"), "");
  }
  const auto peer = ca_.Material(CertificateIdentity::Agent("b"));
  EXPECT_THAT(PeerAs(*agent, *peer, "c"), HasSubstr("its certificate is that of b"));
  EXPECT_THAT(PeerAs(*agent, *Admin(), "b"), HasSubstr("7 peer session: is for agents"));
  const auto nobody = [&](const AgentProcess& to) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ca_.trusted();
    return ChannelTo(to, grpc::SslCredentials(options));
  };
  const auto control_ends = [](const std::shared_ptr<grpc::Channel>& channel) {
    const auto stub = v1::Control::NewStub(channel);
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer token-admin");
    const auto stream = stub->Session(&context);
    v1::ControlUp up;
    EXPECT_FALSE(stream->Read(&up));
    return stream->Finish().error_code();
  };
  // A bearer token is no way into Control any more, an agent's certificate neither.
  EXPECT_EQ(control_ends(nobody(*agent)), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(control_ends(ChannelTo(
                *agent, MakeChannelCredentials(*peer, {CertificateIdentity::Agent("a")}))),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Client(*agent, *peer, "").end().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Client(*agent, *peer, "wrong-token").end().error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  // Strangers do not get past the handshake, and are counted.
  TlsMaterial stranger = *TestAuthority("stranger").Material(CertificateIdentity::Agent("b"));
  stranger.trusted_pem = ca_.trusted();
  EXPECT_THAT(PeerAs(*agent, stranger, "b"), HasSubstr("14 "));
  EXPECT_EQ(control_ends(ChannelTo(*agent, grpc::InsecureChannelCredentials())),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(WaitUntil([&] {
    const std::string metrics = Http(*agent, "/metrics");
    return metrics.find("kvfabric_agent_tls_refused_total{reason=\"untrusted\"} 0") ==
               std::string::npos &&
           metrics.find("kvfabric_agent_tls_refused_total{reason=\"not_tls\"} 0") ==
               std::string::npos;
  }));
  EXPECT_EQ(PeerAs(*agent, *peer, "b"), "open");
}

TEST_F(AgentTlsTest, TakesNoCertificateOfAnotherNodeKeyOrAuthority) {
  const auto agent = Start("a");
  Operator control(*agent, ca_, "a");
  EXPECT_THAT(control.Certify(ca_, "b"), HasSubstr("agent/b's, this is node a"));
  const CertifiedKey other = ca_.Issue(CertificateIdentity::Agent("a"));
  EXPECT_THAT(control.Give(other.certificate_pem, ca_.trusted()), HasSubstr("another key's"));
  EXPECT_THAT(control.Give("garbage", ca_.trusted()), HasSubstr("certificate"));
  EXPECT_THAT(control.Give("", "garbage"), HasSubstr("trust bundle"));
  EXPECT_FALSE(control.Report().own_certificate());
  EXPECT_THAT(Http(*agent, "/readyz"), HasSubstr("503"));
}

ShardMap MapOf(const AgentProcess& a, const AgentProcess& b, const std::string& uid_a,
               const std::string& uid_b) {
  ShardMap map;
  map.pool_uid = "pool-uid";
  map.term = 1;
  map.epoch = 1;
  for (const auto& [name, agent, uid] :
       {std::tuple<std::string, const AgentProcess*, std::string>{"a", &a, uid_a},
        {"b", &b, uid_b}}) {
    Member member;
    member.node_name = name;
    member.agent_uid = uid;
    member.address = "127.0.0.1";
    member.grpc_port = agent->endpoints().grpc.port;
    member.bulk_port = agent->endpoints().bulk.port;
    member.weight = 1;
    map.members.push_back(member);
  }
  for (std::uint32_t slot = 0; slot < map.slot_count; ++slot) {
    map.table.push_back(static_cast<MemberIndex>(slot % 2));
    map.table.push_back(static_cast<MemberIndex>(1 - slot % 2));
  }
  return map;
}

std::string UidIn(const std::filesystem::path& state) {
  std::ifstream file(state / "agent.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string key = "\"agentUID\":\"";
  const std::size_t at = text.find(key) + key.size();
  return text.substr(at, text.find('"', at) - at);
}

// Blocks travel between two agents over TLS while their certificates and then their CA are changed
// under them: no call fails, none misses.
TEST_F(AgentTlsTest, RotatesUnderLoadWithoutAFailedCall) {
  const auto a = Start("a");
  const auto b = Start("b");
  Operator to_a(*a, ca_, "a"), to_b(*b, ca_, "b");
  // Of an age at which the next one is asked for at once.
  constexpr std::int64_t kOld = 7'200 * 2;
  EXPECT_EQ(to_a.Certify(ca_, "a", kOld), "");
  EXPECT_EQ(to_b.Certify(ca_, "b", kOld), "");
  EXPECT_EQ(to_a.GivePool() + to_b.GivePool(), "");
  const ShardMap map = MapOf(*a, *b, UidIn(dir_.path() / "a"), UidIn(dir_.path() / "b"));
  EXPECT_EQ(to_a.GiveMap(map) + to_b.GiveMap(map), "");
  Client at_a(*a, *Admin(), "token-blue"), at_b(*b, *Admin(), "token-blue");
  // Each is read once at b, where it is not: every read crosses. (One read again may be b's own.)
  constexpr int kBlocks = 600;
  const auto bytes_of = [](int i) { return std::to_string(i) + std::string(1'500, 'x'); };
  for (int i = 0; i < kBlocks; ++i) ASSERT_TRUE(at_a.Put("key-" + std::to_string(i), bytes_of(i)));
  ASSERT_TRUE(WaitUntil(
      [&] { return at_b.Get("key-" + std::to_string(kBlocks - 1)) == bytes_of(kBlocks - 1); }));

  std::atomic<bool> stop = false;
  std::atomic<int> crossed = 0;
  std::vector<std::string> faults;
  std::thread load([&] {
    for (int i = 0; !stop; ++i) {
      // As many as fit beside the others, so that nothing is evicted.
      if (i < kBlocks && !at_a.Put("more-" + std::to_string(i), bytes_of(i))) {
        faults.push_back("put " + std::to_string(i));
      }
      const int block = i % kBlocks;
      const std::string got = at_b.Get("key-" + std::to_string(block));
      if (got != bytes_of(block)) {
        faults.push_back("get " + std::to_string(i) + ": " + got.substr(0, 80));
      }
      ++crossed;
    }
  });
  const auto some_calls = [&] {
    const int before = crossed;
    EXPECT_TRUE(WaitUntil([&] { return crossed > before + 20; }));
  };
  some_calls();
  EXPECT_EQ(to_a.Certify(ca_, "a", kOld), "");
  EXPECT_EQ(to_b.Certify(ca_, "b", kOld), "");
  some_calls();
  const TestAuthority next("next CA");
  const std::string both = ca_.trusted() + next.trusted();
  EXPECT_EQ(to_a.Give("", both) + to_b.Give("", both), "");
  some_calls();
  WriteBootstrap(next, both);  // as the operator does when the new CA begins to sign
  some_calls();
  EXPECT_THAT(to_a.Give("", next.trusted()), HasSubstr("certificate"))
      << "a bundle that does not cover its certificate is refused";
  EXPECT_EQ(to_a.Certify(next, "a", 2, both), "");
  some_calls();
  EXPECT_EQ(to_b.Certify(next, "b", 2, both), "");
  EXPECT_EQ(to_a.Give("", next.trusted()) + to_b.Give("", next.trusted()), "");
  some_calls();
  // Who comes now needs the new CA.
  EXPECT_TRUE(Client(*b, *next.Material({Role::kAdmin, ""}), "token-blue").open());
  EXPECT_FALSE(Client(*b, *Admin(), "token-blue").open());
  stop = true;
  load.join();
  EXPECT_EQ(faults, std::vector<std::string>());
}

}  // namespace
}  // namespace kvfabric
