// The fabric's CA on a fake clock: certificates of two minutes, and a rotation.

#include "operator/controllers/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "operator/controllers/certificate_files.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class MemoryStore final : public CertificateStore {
 public:
  Result<std::optional<std::string>> Load() override { return text; }
  Status Save(const std::string& saved) override {
    if (!refuses.ok()) return refuses;
    text = saved;
    return Status::Ok();
  }
  std::optional<std::string> text;
  Status refuses;
};

class CertificatesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Certificates> Open() {
    auto opened = Certificates::Open(options_, {&store_,
                                                [this](const PublishedCertificates& published) {
                                                  if (!publish_refuses_.ok())
                                                    return publish_refuses_;
                                                  published_ = published;
                                                  return Status::Ok();
                                                },
                                                &clock_, &metrics_});
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  std::int64_t Now() const { return clock_.UnixMicros() / 1'000'000; }
  CertificateVerdict Judge(const std::string& certificate) const {
    return VerifyCertificate(certificate, published_.trusted_pem, Now());
  }

  FakeClock clock_;
  MetricsRegistry metrics_;
  MemoryStore store_;
  Certificates::Options options_{seconds(120), seconds(36'000)};
  PublishedCertificates published_;
  Status publish_refuses_;
};

TEST_F(CertificatesTest, SignsForTheNodeItKnowsWhoeverAsks) {
  const auto certificates = Open();
  const auto key = MakePrivateKey();
  const auto made = certificates->Sign(*MakeSigningRequest(*key), "node-3", "127.0.0.1");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_TRUE(CheckKeyMatches({*made, *key}).ok());
  EXPECT_EQ(Judge(*made).identity, CertificateIdentity::Agent("node-3"));
  EXPECT_EQ(ReadCertificate(*made)->validity.not_after_s, Now() + 120);
  EXPECT_FALSE(certificates->Sign("nonsense", "node-3", "127.0.0.1").ok());
  EXPECT_FALSE(certificates->Sign(*MakeSigningRequest(*key), "", "127.0.0.1").ok());
}

TEST_F(CertificatesTest, PublishesWhatOthersStartWith) {
  const auto certificates = Open();
  using Role = CertificateIdentity::Role;
  EXPECT_EQ(Judge(published_.bootstrap.certificate_pem).identity.role, Role::kBootstrap);
  EXPECT_EQ(Judge(published_.admin.certificate_pem).identity.role, Role::kAdmin);
  EXPECT_EQ(Judge(certificates->own()->own.certificate_pem).identity.role, Role::kOperator);
  EXPECT_TRUE(CheckKeyMatches(published_.bootstrap).ok());
  EXPECT_TRUE(CheckKeyMatches(published_.admin).ok());
}

TEST_F(CertificatesTest, RenewsItsOwnBeforeItEnds) {
  const auto certificates = Open();
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(seconds(10));
    ASSERT_TRUE(certificates->Step(true).ok());
    ASSERT_EQ(Judge(certificates->own()->own.certificate_pem).fault, CertificateFault::kNone) << i;
    ASSERT_EQ(Judge(published_.admin.certificate_pem).fault, CertificateFault::kNone) << i;
  }
}

TEST_F(CertificatesTest, KeepsItsAuthorityOverRestarts) {
  std::string bundle = Open()->trusted();
  EXPECT_EQ(Open()->trusted(), bundle);
  store_.text = "{\"authorities\":[]";
  const auto bad = Certificates::Open(
      options_, {&store_, [](const auto&) { return Status::Ok(); }, &clock_, &metrics_});
  EXPECT_EQ(bad.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(bad.status().message(), HasSubstr("stored CA"));
}

// At every moment, what anybody holds is trusted by the bundle anybody may have then.
TEST_F(CertificatesTest, RotatesTheAuthorityWithoutAGap) {
  auto certificates = Open();
  const std::string old_bundle = certificates->trusted();
  const auto request = *MakeSigningRequest(*MakePrivateKey());
  std::string agent = *certificates->Sign(request, "node-0", "127.0.0.1");
  ASSERT_TRUE(certificates->BeginRotation().ok());
  ASSERT_TRUE(certificates->BeginRotation().ok()) << "one at a time";
  EXPECT_EQ(ReadTrustBundle(published_.trusted_pem)->size(), 2U);

  // Nobody has reported the new bundle: the old CA signs on, for an agent that knows only it.
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(seconds(30));
    ASSERT_TRUE(certificates->Step(false).ok());
    agent = *certificates->Sign(request, "node-0", "127.0.0.1");
    EXPECT_EQ(VerifyCertificate(agent, old_bundle, Now()).fault, CertificateFault::kNone);
    EXPECT_EQ(VerifyCertificate(certificates->own()->own.certificate_pem, old_bundle, Now()).fault,
              CertificateFault::kNone);
  }
  certificates = Open();  // a restart in the middle
  EXPECT_TRUE(certificates->rotating());
  const auto signed_by_old = *certificates->Sign(request, "node-0", "127.0.0.1");
  ASSERT_TRUE(certificates->Step(true).ok());
  const auto signed_by_new = *certificates->Sign(request, "node-0", "127.0.0.1");
  EXPECT_EQ(VerifyCertificate(signed_by_new, old_bundle, Now()).fault,
            CertificateFault::kUntrusted);
  // The old one leaves only when what it signed last has ended.
  while (Judge(signed_by_old).fault == CertificateFault::kNone) {
    EXPECT_EQ(ReadTrustBundle(published_.trusted_pem)->size(), 2U);
    clock_.Advance(seconds(10));
    ASSERT_TRUE(certificates->Step(true).ok());
  }
  EXPECT_EQ(Judge(signed_by_old).fault, CertificateFault::kExpired);
  clock_.Advance(seconds(60));
  ASSERT_TRUE(certificates->Step(true).ok());
  EXPECT_FALSE(certificates->rotating());
  EXPECT_EQ(ReadTrustBundle(published_.trusted_pem)->size(), 1U);
  const auto after = *certificates->Sign(request, "node-0", "127.0.0.1");
  EXPECT_EQ(Judge(after).fault, CertificateFault::kNone);
}

TEST_F(CertificatesTest, BeginsARotationByItselfAndEndsIt) {
  options_.lifetime = seconds(900);
  const auto certificates = Open();
  int rotations = 0;
  bool before = false;
  for (int i = 0; i < 36'000 / 200 * 3; ++i) {
    clock_.Advance(seconds(200));
    ASSERT_TRUE(certificates->Step(true).ok());
    ASSERT_EQ(Judge(published_.bootstrap.certificate_pem).fault, CertificateFault::kNone);
    rotations += certificates->rotating() && !before ? 1 : 0;
    before = certificates->rotating();
  }
  EXPECT_GE(rotations, 3);
  EXPECT_LE(rotations, 5);
}

TEST_F(CertificatesTest, SignsWithNothingThatIsNotStored) {
  const auto certificates = Open();
  const std::string before = published_.trusted_pem;
  store_.refuses = Unavailable("disk");
  EXPECT_FALSE(certificates->BeginRotation().ok());
  EXPECT_FALSE(certificates->rotating());
  EXPECT_EQ(certificates->trusted(), before);
  store_.refuses = Status::Ok();
  publish_refuses_ = Unavailable("disk");
  EXPECT_FALSE(certificates->BeginRotation().ok());
  EXPECT_EQ(certificates->trusted(), before);
  publish_refuses_ = Status::Ok();
  EXPECT_TRUE(certificates->Step(false).ok());
  EXPECT_EQ(ReadTrustBundle(certificates->trusted())->size(), 2U) << "made up for";
}

// The operator's loop with agents that speak TLS: each gets a certificate for the node its pod is
// on, and a rotation waits for the last of them.
TEST_F(CertificatesTest, LoopCertifiesAgentsAndRotatesWithThem) {
  OperatorCluster cluster;
  cluster.KillOperator();
  const auto opened = Certificates::Open(options_, {&store_,
                                                    [this](const PublishedCertificates& published) {
                                                      published_ = published;
                                                      return Status::Ok();
                                                    },
                                                    &cluster.clock, &metrics_});
  ASSERT_TRUE(opened.ok());
  Certificates& certificates = **opened;
  cluster.certificates = &certificates;
  cluster.StartOperator();
  for (const char* node : {"n0", "n1"}) {
    cluster.AddAgent(node);
    cluster.agent(node).speaks_tls = true;
    cluster.agent(node).trusted = certificates.trusted();
  }
  cluster.ApplyPool(OperatorCluster::QuickSpec());
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.condition("TLSReady"), "False CertificatesMissing");
  for (const char* node : {"n0", "n1"}) {
    cluster.agent(node).certificate_request = *MakeSigningRequest(*MakePrivateKey());
  }
  cluster.Run(seconds(3));
  EXPECT_EQ(cluster.condition("TLSReady"), "True Certified");
  const auto now = [&] { return cluster.clock.UnixMicros() / 1'000'000; };
  EXPECT_EQ(
      VerifyCertificate(cluster.agent("n1").certificate, certificates.trusted(), now()).identity,
      CertificateIdentity::Agent("n1"));

  // One agent hears nothing: the new CA signs nothing yet.
  cluster.agent("n1").silent = true;
  ASSERT_TRUE(certificates.BeginRotation().ok());
  cluster.Run(seconds(2));
  EXPECT_EQ(cluster.agent("n0").trusted, certificates.trusted());
  const auto signed_by_old = [&] {
    return VerifyCertificate(
               certificates.own()->own.certificate_pem,
               published_.trusted_pem.substr(
                   0, published_.trusted_pem.find("-----END CERTIFICATE-----\n") + 26),
               now())
               .fault == CertificateFault::kNone;
  };
  EXPECT_TRUE(signed_by_old());
  cluster.agent("n1").silent = false;
  cluster.Run(seconds(6));
  EXPECT_EQ(cluster.agent("n1").trusted, certificates.trusted());
  EXPECT_FALSE(signed_by_old());
  cluster.Run(seconds(200));
  EXPECT_FALSE(certificates.rotating());
  EXPECT_EQ(cluster.agent("n1").trusted, certificates.trusted());
}

TEST(CertificateFiles, AreForTheirOwnerOnly) {
  const TempDir dir;
  CertificateFiles files(dir.path() / "tls");
  ASSERT_TRUE(files.Prepare().ok());
  EXPECT_EQ(*files.Load(), std::nullopt);
  ASSERT_TRUE(files.Save("text").ok());
  EXPECT_EQ(**files.Load(), "text");
  ASSERT_TRUE(files.Publish({"ca", {"crt", "key"}, {"admin crt", "admin key"}}).ok());
  for (const char* name :
       {"authority.json", "ca.crt", "tls.crt", "tls.key", "admin.crt", "admin.key"}) {
    struct stat about {};
    ASSERT_EQ(::stat((dir.path() / "tls" / name).c_str(), &about), 0) << name;
    EXPECT_EQ(about.st_mode & 0777U, 0600U) << name;
  }
}

}  // namespace
}  // namespace kvfabric
