#include "transport/tls_stream.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <random>

#include "common/mutex.h"
#include "tests/fakes/test_seed.h"
#include "tests/transport/stream_pair.h"
#include "transport/frame_connection.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

// Keys and certificates as the operator would sign them; OpenSSL frees with the process.
struct Signed {
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;

  std::string CertificatePem() const {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    return Taken(bio);
  }
  std::string KeyPem() const {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    return Taken(bio);
  }
  static std::string Taken(BIO* bio) {
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    std::string text(data, static_cast<std::size_t>(bytes));
    BIO_free(bio);
    return text;
  }
  ~Signed() {
    EVP_PKEY_free(key);
    X509_free(certificate);
  }
};

void Extend(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  KVF_CHECK(extension != nullptr, "bad extension");
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

std::unique_ptr<Signed> Sign(const char* name, const Signed* by, const char* subject_names) {
  auto made = std::make_unique<Signed>();
  made->key = EVP_EC_gen("P-256");
  made->certificate = X509_new();
  X509* const c = made->certificate;
  static long serial = 1;
  X509_set_version(c, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(c), serial++);
  X509_gmtime_adj(X509_getm_notBefore(c), -60);
  X509_gmtime_adj(X509_getm_notAfter(c), 3'600);
  X509_set_pubkey(c, made->key);
  X509_NAME* subject = X509_get_subject_name(c);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509* const issuer = by == nullptr ? c : by->certificate;
  X509_set_issuer_name(c, X509_get_subject_name(issuer));
  Extend(c, issuer, NID_basic_constraints, by == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  if (subject_names != nullptr) Extend(c, issuer, NID_subject_alt_name, subject_names);
  KVF_CHECK(X509_sign(c, by == nullptr ? made->key : by->key, EVP_sha256()) > 0, "cannot sign");
  return made;
}

std::shared_ptr<const TlsContext> ContextOf(const Signed& own, const std::string& trusted) {
  auto context = TlsContext::Create({.certificate_pem = own.CertificatePem(),
                                     .private_key_pem = own.KeyPem(),
                                     .trusted_pem = trusted});
  KVF_CHECK(context.ok(), "cannot make a context");
  return *context;
}

// Remembers what came and why it ended; answers each request with its own payload.
class Echo final : public FrameHandler {
 public:
  std::shared_ptr<FrameConnection> connection;
  bool answers = false;

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    header_ = frame.header;
    payload_ = std::make_shared<std::string>(frame.header.payload_bytes, '\0');
    if (payload_->empty()) return Taken();
    parts.push_back({reinterpret_cast<std::byte*>(payload_->data()), payload_->size()});
    return Status::Ok();
  }
  Status OnPayload(const std::vector<std::uint64_t>& /*checksums*/) override { return Taken(); }
  void OnOpen() override { opened = true; }
  void OnClosed(const Status& why) override {
    MutexLock lock(mu_);
    closed_ = std::make_unique<Status>(why);
    changed_.NotifyAll();
  }
  std::vector<std::string> WaitPayloads(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (payloads_.size() < count && changed_.WaitUntil(mu_, deadline)) {
    }
    return payloads_;
  }
  Status WaitClosed() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (closed_ == nullptr && changed_.WaitUntil(mu_, deadline)) {
    }
    return closed_ == nullptr ? Internal("still open") : *closed_;
  }
  bool opened = false;

 private:
  Status Taken() {
    if (answers) {
      OutgoingFrame frame;
      frame.header.op = header_.op;
      frame.header.flags = kFrameReply;
      frame.header.request_id = header_.request_id;
      frame.payload.push_back(AsBytes(std::string_view(*payload_)));
      frame.payload_owner = payload_;
      connection->Send(std::move(frame));
    }
    MutexLock lock(mu_);
    payloads_.push_back(*payload_);
    changed_.NotifyAll();
    return Status::Ok();
  }

  FrameHeader header_;
  std::shared_ptr<std::string> payload_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> payloads_ GUARDED_BY(mu_);
  std::unique_ptr<Status> closed_ GUARDED_BY(mu_);
};

class TlsStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = EventLoop::Create({.name = "tls"});
    ASSERT_TRUE(loop.ok());
    loop_ = std::move(*loop);
    authority_ = Sign("authority", nullptr, nullptr);
    agent_ = Sign("agent", authority_.get(), "DNS:agent-1,IP:127.0.0.1");
    trusted_ = authority_->CertificatePem();
  }
  void Open(const TlsContext& server, const TlsContext& client, const std::string& name) {
    SocketPair pair = MakeSocketPair();
    auto accepted = server.Accept(std::move(pair.ours), "client");
    auto connected = client.Connect(std::move(pair.theirs), "server", name);
    ASSERT_TRUE(accepted.ok() && connected.ok());
    Start(std::move(*accepted), server_);
    Start(std::move(*connected), client_);
  }
  void Start(std::unique_ptr<Stream> stream, const std::shared_ptr<Echo>& echo) {
    loop_->RunSync([&] {
      auto started = FrameConnection::Start(*loop_, std::move(stream),
                                            {.handshake_timeout = milliseconds(5'000)}, echo);
      ASSERT_TRUE(started.ok());
      echo->connection = *started;
    });
  }
  void TearDown() override {
    loop_->Stop();
    server_->connection = client_->connection = nullptr;
  }

  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Signed> authority_;
  std::unique_ptr<Signed> agent_;
  std::string trusted_;
  std::shared_ptr<Echo> server_ = std::make_shared<Echo>();
  std::shared_ptr<Echo> client_ = std::make_shared<Echo>();
};

TEST_F(TlsStreamTest, CarriesFramesBothWays) {
  server_->answers = true;
  const auto context = ContextOf(*agent_, trusted_);
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> sent;
  for (const char* name : {"agent-1", "127.0.0.1"}) {
    Open(*context, *context, name);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{5'000}, std::size_t{16'384},
                                    std::size_t{3} << 20U, std::size_t{70'001}}) {
      sent.emplace_back(bytes, '\0');
      for (char& c : sent.back()) c = static_cast<char>(random());
    }
    loop_->RunSync([&] {  // before the hand-shake is done: they wait
      for (std::size_t i = sent.size() - 5; i < sent.size(); ++i) {
        OutgoingFrame frame;
        frame.header.op = FrameOp::kPing;
        frame.header.request_id = i + 1;
        frame.payload.push_back(AsBytes(std::string_view(sent[i])));
        client_->connection->Send(std::move(frame));
      }
    });
    EXPECT_EQ(client_->WaitPayloads(sent.size()), sent);
    EXPECT_EQ(server_->WaitPayloads(sent.size()), sent);
    loop_->RunSync([&] { EXPECT_TRUE(client_->opened && server_->opened); });
  }
}

TEST_F(TlsStreamTest, RefusesWhomNobodyTrusts) {
  const auto stranger = Sign("stranger", nullptr, "DNS:agent-1");
  const auto context = ContextOf(*agent_, trusted_);
  const auto strange = ContextOf(*stranger, trusted_);
  Open(*context, *strange, "agent-1");  // a client with a certificate of its own making
  EXPECT_EQ(server_->WaitClosed().code(), StatusCode::kUnauthenticated);
  EXPECT_FALSE(server_->opened);
}

TEST_F(TlsStreamTest, RefusesAServerOfAnotherName) {
  const auto context = ContextOf(*agent_, trusted_);
  Open(*context, *context, "agent-2");
  EXPECT_EQ(client_->WaitClosed().code(), StatusCode::kUnauthenticated);
  EXPECT_FALSE(client_->opened);
}

TEST_F(TlsStreamTest, ClosesOnWhatIsNoTls) {
  const auto context = ContextOf(*agent_, trusted_);
  SocketPair pair = MakeSocketPair();
  auto accepted = context->Accept(std::move(pair.ours), "plain");
  ASSERT_TRUE(accepted.ok());
  Start(std::move(*accepted), server_);
  ASSERT_TRUE(WriteAll(pair.theirs.get(), EncodeRawFrame({.op = FrameOp::kHello}, "token")));
  EXPECT_EQ(server_->WaitClosed().code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(ReadsEnd(pair.theirs.get()));
}

TEST_F(TlsStreamTest, SaysWhichPartItCannotRead) {
  const TlsContext::Options good{.certificate_pem = agent_->CertificatePem(),
                                 .private_key_pem = agent_->KeyPem(),
                                 .trusted_pem = trusted_};
  for (const std::string part : {"certificate", "private key", "trust bundle"}) {
    TlsContext::Options options = good;
    (part == "certificate"   ? options.certificate_pem
     : part == "private key" ? options.private_key_pem
                             : options.trusted_pem) = "-----BEGIN NOTHING-----";
    const auto context = TlsContext::Create(options);
    EXPECT_EQ(context.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(context.status().message().find(part), std::string::npos)
        << context.status().message();
  }
  TlsContext::Options foreign = good;
  foreign.private_key_pem = authority_->KeyPem();
  EXPECT_FALSE(TlsContext::Create(foreign).ok()) << "another certificate's key";
}

}  // namespace
}  // namespace kvfabric
