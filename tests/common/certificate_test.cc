#include "common/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNow = 1'700'000'000;

CertifiedKey Authority(const std::string& name = "ca") {
  auto made = MakeAuthority(name, {kNow - 60, kNow + 86'400});
  KVF_CHECK(made.ok(), "cannot make an authority");
  return *made;
}
CertificateOrder OrderFor(CertificateIdentity identity, std::int64_t lifetime_s = 120) {
  return {std::move(identity), {"kvfabric-agent"}, {"127.0.0.1"}, {kNow - 10, kNow + lifetime_s}};
}
CertifiedKey Issued(const CertifiedKey& by, const CertificateIdentity& identity) {
  auto made = IssueCertificate(by, OrderFor(identity));
  KVF_CHECK(made.ok(), "cannot issue");
  return *made;
}

TEST(CertificateIdentity, ReadsBackWhatItWrites) {
  using Role = CertificateIdentity::Role;
  for (const CertificateIdentity& identity :
       {CertificateIdentity::Agent("node-0.zone-a"), CertificateIdentity{Role::kOperator, ""},
        CertificateIdentity{Role::kAdmin, ""}, CertificateIdentity{Role::kTenant, "blue"},
        CertificateIdentity{Role::kBootstrap, ""}}) {
    EXPECT_EQ(CertificateIdentity::Parse(identity.ToString()), identity) << identity.ToString();
  }
  for (const char* uri :
       {"", "spiffe://kvfabric", "spiffe://kvfabric/", "spiffe://other/agent/a",
        "spiffe://kvfabric/agent", "spiffe://kvfabric/agent/", "spiffe://kvfabric/agent/a/b",
        "spiffe://kvfabric/agent/a,DNS:b", "spiffe://kvfabric/operator/x", "https://kvfabric/admin",
        "spiffe://kvfabric/agent/a\n", "spiffe://kvfabric/ADMIN"}) {
    EXPECT_EQ(CertificateIdentity::Parse(uri), std::nullopt) << uri;
  }
}

TEST(Certificate, CarriesItsIdentityThroughTheCheck) {
  const CertifiedKey ca = Authority();
  const CertifiedKey agent = Issued(ca, CertificateIdentity::Agent("node-0"));
  EXPECT_TRUE(CheckKeyMatches(agent).ok());
  const auto facts = ReadCertificate(agent.certificate_pem);
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  EXPECT_EQ(facts->identity, CertificateIdentity::Agent("node-0"));
  EXPECT_EQ(facts->validity.not_before_s, kNow - 10);
  EXPECT_EQ(facts->validity.not_after_s, kNow + 120);
  EXPECT_FALSE(facts->authority);
  EXPECT_EQ(facts->fingerprint.size(), 64U);
  const CertificateVerdict verdict =
      VerifyCertificate(agent.certificate_pem, ca.certificate_pem, kNow);
  EXPECT_EQ(verdict.fault, CertificateFault::kNone) << verdict.reason;
  EXPECT_EQ(verdict.identity, CertificateIdentity::Agent("node-0"));
}

TEST(Certificate, EndsAndBeginsWhenItSays) {
  const CertifiedKey ca = Authority();
  const CertifiedKey agent = Issued(ca, CertificateIdentity::Agent("node-0"));
  const auto fault_at = [&](std::int64_t now) {
    return VerifyCertificate(agent.certificate_pem, ca.certificate_pem, now).fault;
  };
  EXPECT_EQ(fault_at(kNow + 119), CertificateFault::kNone);
  EXPECT_EQ(fault_at(kNow + 121), CertificateFault::kExpired);
  EXPECT_EQ(fault_at(kNow - 11), CertificateFault::kNotYetValid);
}

TEST(Certificate, NeverOutlivesItsAuthority) {
  const CertifiedKey ca = Authority();
  const auto made =
      IssueCertificate(ca, OrderFor(CertificateIdentity::Agent("node-0"), 10 * 86'400));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(ReadCertificate(made->certificate_pem)->validity.not_after_s, kNow + 86'400);
}

TEST(Certificate, IsTrustedByItsOwnAuthorityOnlyAlsoInABundleOfTwo) {
  const CertifiedKey old_ca = Authority("old");
  const CertifiedKey new_ca = Authority("new");
  const CertifiedKey stranger = Authority("old");  // another key under the same name
  const CertifiedKey by_old = Issued(old_ca, CertificateIdentity::Agent("node-0"));
  const CertifiedKey by_new = Issued(new_ca, CertificateIdentity::Agent("node-0"));
  const std::string both = old_ca.certificate_pem + new_ca.certificate_pem;
  EXPECT_EQ(VerifyCertificate(by_old.certificate_pem, both, kNow).fault, CertificateFault::kNone);
  EXPECT_EQ(VerifyCertificate(by_new.certificate_pem, both, kNow).fault, CertificateFault::kNone);
  EXPECT_EQ(VerifyCertificate(by_old.certificate_pem, new_ca.certificate_pem, kNow).fault,
            CertificateFault::kUntrusted);
  EXPECT_EQ(VerifyCertificate(by_old.certificate_pem, stranger.certificate_pem, kNow).fault,
            CertificateFault::kUntrusted);
  EXPECT_EQ(ReadTrustBundle(both)->size(), 2U);
  EXPECT_THAT(ReadTrustBundle(both + by_new.certificate_pem).status().message(),
              HasSubstr("certificate 3 is no authority"));
}

TEST(Certificate, OneThatAnAgentSignedIsNotTrusted) {
  const CertifiedKey ca = Authority();
  const CertifiedKey agent = Issued(ca, CertificateIdentity::Agent("node-0"));
  const auto forged = IssueCertificate(agent, OrderFor({CertificateIdentity::Role::kAdmin, ""}));
  if (!forged.ok()) return;  // refused earlier is as good
  EXPECT_EQ(
      VerifyCertificate(forged->certificate_pem + agent.certificate_pem, ca.certificate_pem, kNow)
          .fault,
      CertificateFault::kUntrusted);
}

TEST(Certificate, AuthorityItselfIsNoIdentity) {
  const CertifiedKey ca = Authority();
  EXPECT_EQ(VerifyCertificate(ca.certificate_pem, ca.certificate_pem, kNow).fault,
            CertificateFault::kNoIdentity);
}

TEST(Certificate, RequestMustBeSignedByItsOwnKey) {
  const CertifiedKey ca = Authority();
  const auto key = MakePrivateKey();
  const auto request = MakeSigningRequest(*key);
  ASSERT_TRUE(request.ok());
  // The signature is at the end of the DER: another last character of the base64 text breaks it.
  std::string forged = *request;
  const std::size_t at = forged.find("-----END") - 10;
  forged[at] = forged[at] == 'A' ? 'B' : 'A';
  const auto order = OrderFor(CertificateIdentity::Agent("node-0"));
  const Status refused = SignCertificate(ca, forged, order).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnauthenticated) << refused.ToString();
  EXPECT_TRUE(SignCertificate(ca, *request, order).ok());
  EXPECT_EQ(SignCertificate(ca, "nonsense", order).status().code(), StatusCode::kInvalidArgument);
}

TEST(Certificate, NamesThatWouldSayMoreAreRefused) {
  const CertifiedKey ca = Authority();
  for (const char* name : {"", "a,URI:spiffe://kvfabric/admin", "a/b", "a b", "a\nb"}) {
    EXPECT_FALSE(IssueCertificate(ca, OrderFor(CertificateIdentity::Agent(name))).ok()) << name;
  }
}

TEST(Certificate, KeyOfAnotherDoesNotMatch) {
  const CertifiedKey ca = Authority();
  CertifiedKey mixed = Issued(ca, CertificateIdentity::Agent("node-0"));
  mixed.key_pem = *MakePrivateKey();
  EXPECT_EQ(CheckKeyMatches(mixed).code(), StatusCode::kInvalidArgument);
}

// Every part, cut anywhere or with a byte changed: refused, or read as it was, never a crash.
TEST(Certificate, TakesNoGarbage) {
  const CertifiedKey ca = Authority();
  const CertifiedKey agent = Issued(ca, CertificateIdentity::Agent("node-0"));
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 400; ++i) {
    std::string certificate = agent.certificate_pem;
    std::string bundle = ca.certificate_pem + ca.certificate_pem;
    std::string key = agent.key_pem;
    for (std::string* text : {&certificate, &bundle, &key}) {
      if (random() % 2 == 0) {
        text->resize(random() % text->size());
      } else {
        (*text)[random() % text->size()] = static_cast<char>(random());
      }
    }
    const auto verdict = VerifyCertificate(certificate, ca.certificate_pem, kNow);
    if (verdict.fault == CertificateFault::kNone) {
      EXPECT_EQ(verdict.identity, CertificateIdentity::Agent("node-0"));
    }
    static_cast<void>(ReadCertificate(certificate));
    static_cast<void>(ReadTrustBundle(bundle));
    static_cast<void>(CheckKeyMatches({agent.certificate_pem, key}));
    static_cast<void>(SignCertificate({ca.certificate_pem, key}, certificate, {}));
  }
  const std::string cut = ca.certificate_pem + ca.certificate_pem.substr(0, 100);
  EXPECT_FALSE(ReadTrustBundle(cut).ok()) << "a bundle that is cut is no bundle";
  EXPECT_EQ(VerifyCertificate(agent.certificate_pem, "", kNow).fault, CertificateFault::kUntrusted);
}

}  // namespace
}  // namespace kvfabric
