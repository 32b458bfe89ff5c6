// Both ends of TLS under gRPC, over real sockets.

#include "api/grpc_tls.h"

// Before gRPC, which brings macros of the same names along.
// clang-format off
#include "common/mutex.h"
// clang-format on

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "common/unique_fd.h"
#include "kvfabric/v1/control.grpc.pb.h"
#include "tests/fakes/test_authority.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using Role = CertificateIdentity::Role;
using ::testing::HasSubstr;

const CertificateIdentity kNode = CertificateIdentity::Agent("node-0");
const CertificateIdentity kOperator{Role::kOperator, ""};

// Says to each caller who it is.
class WhoAmI final : public v1::Control::Service {
 public:
  explicit WhoAmI(std::shared_ptr<const TlsMaterial> material)
      : material_(std::move(material)),
        credentials_(MakeServerCredentials([this] { return this->material(); })) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials_, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    KVF_CHECK(server_ != nullptr, "no server");
  }
  ~WhoAmI() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  int port() const { return port_; }
  void Use(std::shared_ptr<const TlsMaterial> material) {
    MutexLock lock(mu_);
    material_ = std::move(material);
  }

  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::ControlUp, v1::ControlDown>* stream) override {
    const auto caller = CallerIdentity(*context);
    v1::ControlUp up;
    up.set_refused(caller ? caller->ToString() : "nobody");
    v1::ControlDown down;
    while (stream->Read(&down)) stream->Write(up);
    return grpc::Status::OK;
  }

 private:
  std::shared_ptr<const TlsMaterial> material() {
    MutexLock lock(mu_);
    return material_;
  }

  Mutex mu_;
  std::shared_ptr<const TlsMaterial> material_ GUARDED_BY(mu_);
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// One stream over a connection of its own.
class Caller {
 public:
  Caller(int port, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = v1::Control::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), credentials, arguments));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream_ = stub_->Session(&context_);
  }
  ~Caller() {
    context_.TryCancel();
    if (!finished_) stream_->Finish();
  }
  // What the server says; the error when there is no answer.
  std::string Ask() {
    v1::ControlUp up;
    if (stream_->Write(v1::ControlDown()) && stream_->Read(&up)) return up.refused();
    finished_ = true;
    const grpc::Status status = stream_->Finish();
    return "error " + std::to_string(status.error_code()) + ": " + status.error_message();
  }

 private:
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlDown, v1::ControlUp>> stream_;
  bool finished_ = false;
};

class GrpcTlsTest : public ::testing::Test {
 protected:
  std::string Ask(const TlsMaterial& material,
                  std::vector<CertificateIdentity> expected = {kNode}) {
    return Caller(server_.port(), MakeChannelCredentials(material, std::move(expected))).Ask();
  }
  double Refused(const std::string& reason) {
    return metrics_.GetCounter("t_tls_refused_total", "", {{"reason", reason}}).Value();
  }
  // The server notes a refusal after the client has seen it.
  bool WaitRefused(const std::string& reason, double more_than) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < until) {
      if (Refused(reason) > more_than) return true;
      std::this_thread::yield();
    }
    return false;
  }
  UniqueFd Connect() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(server_.port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    KVF_CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0, "connect");
    return fd;
  }

  MetricsRegistry metrics_;
  HandshakeWatch watch_{metrics_, "t"};
  TestAuthority ca_;
  TestAuthority stranger_{"stranger"};
  WhoAmI server_{ca_.Material(kNode)};
};

TEST_F(GrpcTlsTest, BothEndsKnowWhoTheOtherIs) {
  EXPECT_EQ(Ask(*ca_.Material(kOperator)), kOperator.ToString());
  const CertificateIdentity bootstrap{Role::kBootstrap, ""};
  EXPECT_EQ(Ask(*ca_.Material(CertificateIdentity::Agent("node-1")), {bootstrap, kNode}),
            "spiffe://kvfabric/agent/node-1");
}

TEST_F(GrpcTlsTest, ClientWithoutACertificateIsNobody) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ca_.trusted();
  EXPECT_EQ(Caller(server_.port(), grpc::SslCredentials(options)).Ask(), "nobody");
}

TEST_F(GrpcTlsTest, ClientOfAnotherAuthorityIsRefused) {
  // It trusts us; we do not trust it.
  TlsMaterial material = *stranger_.Material(kOperator);
  material.trusted_pem = ca_.trusted();
  EXPECT_THAT(Ask(material), HasSubstr("error 14"));
  EXPECT_TRUE(WaitRefused("untrusted", 0));
  EXPECT_EQ(Ask(*ca_.Material(kOperator)), kOperator.ToString()) << "others are served";
}

TEST_F(GrpcTlsTest, CertificateThatHasEndedIsRefused) {
  EXPECT_THAT(Ask(*ca_.Material(kOperator, -60)), HasSubstr("error 14"));
  EXPECT_TRUE(WaitRefused("untrusted", 0));
  server_.Use(ca_.Material(kNode, -60));
  EXPECT_THAT(Ask(*ca_.Material(kOperator)), HasSubstr("error 14"));
}

TEST_F(GrpcTlsTest, ServerThatIsAnotherNodeIsRefused) {
  EXPECT_THAT(Ask(*ca_.Material(kOperator), {CertificateIdentity::Agent("node-1")}),
              HasSubstr("error 14"));
  EXPECT_GE(Refused("wrong_identity"), 1);
  server_.Use(stranger_.Material(kNode));
  EXPECT_THAT(Ask(*ca_.Material(kOperator)), HasSubstr("error 14"));
  EXPECT_TRUE(WaitRefused("untrusted", 0));
}

TEST_F(GrpcTlsTest, WhatIsNoTlsIsRefused) {
  EXPECT_THAT(Caller(server_.port(), grpc::InsecureChannelCredentials()).Ask(),
              HasSubstr("error 14"));
  EXPECT_TRUE(WaitRefused("not_tls", 0));
  {
    const UniqueFd raw = Connect();
    const std::string garbage(10'000, 'x');
    ASSERT_GT(::send(raw.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  }
  EXPECT_TRUE(WaitRefused("not_tls", 1));
  EXPECT_EQ(Ask(*ca_.Material(kOperator)), kOperator.ToString());
}

TEST_F(GrpcTlsTest, OlderTlsIsRefused) {
  const auto handshakes = [this](int version) {
    SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, version);
    SSL* const ssl = SSL_new(context);
    const UniqueFd fd = Connect();
    SSL_set_fd(ssl, fd.get());
    const unsigned char h2[] = "\x02h2";
    SSL_set_alpn_protos(ssl, h2, 3);
    const bool done = SSL_connect(ssl) == 1;
    SSL_free(ssl);
    SSL_CTX_free(context);
    return done;
  };
  EXPECT_TRUE(handshakes(TLS1_3_VERSION));
  EXPECT_FALSE(handshakes(TLS1_2_VERSION));
  EXPECT_TRUE(WaitRefused("old_version", 0));
}

TEST_F(GrpcTlsTest, NewCertificateIsUsedByTheNextConnectionAndTheFirstLivesOn) {
  Caller first(server_.port(), MakeChannelCredentials(*ca_.Material(kOperator), {kNode}));
  EXPECT_EQ(first.Ask(), kOperator.ToString());
  // Another CA altogether, and another name.
  const CertificateIdentity other = CertificateIdentity::Agent("node-9");
  server_.Use(stranger_.Material(other));
  EXPECT_EQ(Ask(*stranger_.Material(kOperator), {other}), kOperator.ToString());
  EXPECT_THAT(Ask(*ca_.Material(kOperator)), HasSubstr("error 14"));
  EXPECT_EQ(first.Ask(), kOperator.ToString());
}

}  // namespace
}  // namespace kvfabric
