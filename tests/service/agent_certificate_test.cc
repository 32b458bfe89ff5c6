// What an agent proves itself with, over time: a fake clock and real files.

#include "agent/service/agent_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

using Role = CertificateIdentity::Role;
using std::chrono::seconds;
using ::testing::HasSubstr;

class AgentCertificateTest : public ::testing::Test {
 protected:
  AgentCertificateTest() {
    std::filesystem::create_directories(Bootstrap());
    Publish(ca_, ca_.certificate_pem);
  }
  std::filesystem::path Bootstrap() const { return dir_.path() / "tls"; }
  std::int64_t Now() const { return clock_.UnixMicros() / 1'000'000; }
  CertifiedKey Authority(const std::string& name) const {
    return *MakeAuthority(name, {Now() - 10, Now() + 1'000'000});
  }
  void Publish(const CertifiedKey& ca, const std::string& trusted) {
    const auto made =
        IssueCertificate(ca, {{Role::kBootstrap, ""}, {}, {}, {Now() - 10, Now() + 500'000}});
    std::ofstream(Bootstrap() / "ca.crt") << trusted;
    std::ofstream(Bootstrap() / "tls.crt") << made->certificate_pem;
    std::ofstream(Bootstrap() / "tls.key") << made->key_pem;
  }
  Result<std::unique_ptr<AgentCertificate>> Open(const std::string& node = "node-0") {
    AgentCertificate::Options options;
    options.node_name = node;
    options.bootstrap = Bootstrap();
    options.directory = dir_.path() / "state";
    return AgentCertificate::Open(options, {&clock_, &metrics_});
  }
  std::string Sign(const std::string& request, std::int64_t life_s = 120,
                   const std::string& node = "node-0") {
    return *SignCertificate(ca_, request,
                            {CertificateIdentity::Agent(node), {}, {}, {Now(), Now() + life_s}});
  }

  FakeClock clock_;
  MetricsRegistry metrics_;
  TempDir dir_;
  CertifiedKey ca_ = Authority("first");
};

TEST_F(AgentCertificateTest, RenewsAtTwoThirdsOfItsLifeForEver) {
  auto own = std::move(*Open());
  EXPECT_FALSE(own->own());
  int taken = 0;
  for (int second = 0; second < 1'200; ++second) {
    if (const auto request = own->RequestIfDue()) {
      ASSERT_TRUE(own->Install(Sign(*request), ca_.certificate_pem).ok());
      ++taken;
      EXPECT_FALSE(own->RequestIfDue()) << "not due yet";
    }
    ASSERT_TRUE(own->own());
    clock_.Advance(seconds(1));
    ASSERT_TRUE(own->Check().ok());
    const auto material = own->material();
    ASSERT_EQ(VerifyCertificate(material->own.certificate_pem, material->trusted_pem, Now()).fault,
              CertificateFault::kNone);
  }
  EXPECT_EQ(taken, 1'200 / 80);
  EXPECT_EQ(own->report().trusted, TrustFingerprint(ca_.certificate_pem));
}

TEST_F(AgentCertificateTest, AsksAgainWithTheSameKeyAndNotTooOften) {
  auto own = std::move(*Open());
  const auto first = own->RequestIfDue();
  ASSERT_TRUE(first);
  EXPECT_FALSE(own->RequestIfDue());
  clock_.Advance(seconds(6));
  ASSERT_TRUE(own->RequestIfDue());
  // The late answer to the first request is good too.
  EXPECT_TRUE(own->Install(Sign(*first), ca_.certificate_pem).ok());
}

TEST_F(AgentCertificateTest, IsBackAtBootstrapWhenItsCertificateHasEnded) {
  auto own = std::move(*Open());
  ASSERT_TRUE(own->Install(Sign(*own->RequestIfDue()), ca_.certificate_pem).ok());
  clock_.Advance(seconds(119));
  ASSERT_TRUE(own->Check().ok());
  EXPECT_TRUE(own->own());
  clock_.Advance(seconds(2));
  ASSERT_TRUE(own->Check().ok());
  EXPECT_FALSE(own->own());
  EXPECT_EQ(ReadCertificate(own->material()->own.certificate_pem)->identity->role,
            Role::kBootstrap);
  ASSERT_TRUE(own->Install(Sign(*own->RequestIfDue()), ca_.certificate_pem).ok());
  EXPECT_TRUE(own->own());
}

TEST_F(AgentCertificateTest, KeepsItsCertificateOverARestartWhileItIsGood) {
  auto own = std::move(*Open());
  ASSERT_TRUE(own->Install(Sign(*own->RequestIfDue()), ca_.certificate_pem).ok());
  const std::string certificate = own->material()->own.certificate_pem;
  struct stat about {};
  ASSERT_EQ(::stat((dir_.path() / "state" / "agent.pem").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
  own = std::move(*Open());
  EXPECT_TRUE(own->own());
  EXPECT_EQ(own->material()->own.certificate_pem, certificate);
  EXPECT_FALSE((*Open("node-1"))->own()) << "another node's";
  const CertifiedKey next = Authority("next");
  Publish(next, next.certificate_pem);
  EXPECT_FALSE((*Open())->own()) << "a CA that was made anew does not cover it";
  Publish(ca_, ca_.certificate_pem);
  std::ofstream(dir_.path() / "state" / "agent.pem") << "garbage";
  EXPECT_FALSE((*Open())->own());
}

TEST_F(AgentCertificateTest, FollowsTheBootstrapFiles) {
  auto own = std::move(*Open());
  ASSERT_TRUE(own->Install(Sign(*own->RequestIfDue()), ca_.certificate_pem).ok());
  const CertifiedKey next = Authority("next");
  const std::string both = ca_.certificate_pem + next.certificate_pem;
  Publish(ca_, both);
  ASSERT_TRUE(own->Check().ok());
  EXPECT_TRUE(own->own());
  EXPECT_EQ(own->material()->trusted_pem, both);
  // Half written: the present state stays.
  std::ofstream(Bootstrap() / "ca.crt") << both.substr(0, 100);
  EXPECT_FALSE(own->Check().ok());
  EXPECT_TRUE(own->own());
  EXPECT_EQ(own->material()->trusted_pem, both);
  Publish(next, next.certificate_pem);
  ASSERT_TRUE(own->Check().ok());
  EXPECT_FALSE(own->own());
}

TEST_F(AgentCertificateTest, SaysWhatIsWrongWithTheBundle) {
  std::filesystem::remove(Bootstrap() / "tls.key");
  EXPECT_THAT(Open().status().message(), HasSubstr("tls.key: no such file: give tls.bootstrapDir"));
  std::ofstream(Bootstrap() / "tls.key") << *MakePrivateKey();
  EXPECT_THAT(Open().status().message(), HasSubstr("another key's"));
  std::ofstream(Bootstrap() / "ca.crt") << "nothing";
  EXPECT_THAT(Open().status().message(), HasSubstr("ca.crt: trust bundle"));
}

}  // namespace
}  // namespace kvfabric
