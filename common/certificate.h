#pragma once

// X.509 as the fabric uses it: a CA that signs short-lived certificates, each for one identity, and
// the check of a certificate against a bundle of CAs. Keys are ECDSA P-256; everything is PEM text.
//
// A library of its own (kvfabric::certificates) in common/, because operator, agent and transport
// all need it and have no other room in common; it loads libcrypto, which the engine library must
// not. Pure functions, any thread; times are unix seconds and come from the caller, so that tests
// own them. Errors name the part that is bad, never its contents.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace kvfabric {

// Who holds a certificate: the one URI in it, spiffe://kvfabric/ROLE or
// spiffe://kvfabric/ROLE/NAME.
struct CertificateIdentity {
  enum class Role : std::uint8_t {
    kAgent,      // of the node NAME: Peer, bulk, and Control as server
    kOperator,   // Control as client
    kAdmin,      // tools: Control and Cache as client
    kTenant,     // NAME: Cache as client
    kBootstrap,  // an agent that has no certificate of its own yet: Control as server
  };
  Role role = Role::kBootstrap;
  std::string name;  // of agents and tenants only

  bool operator==(const CertificateIdentity&) const = default;
  std::string ToString() const;
  // nullopt for what is no identity of ours.
  static std::optional<CertificateIdentity> Parse(std::string_view uri);
  static CertificateIdentity Agent(std::string node) { return {Role::kAgent, std::move(node)}; }
};

struct CertifiedKey {
  std::string certificate_pem;  // leaf first
  std::string key_pem;          // PKCS #8
};

// What one end of a TLS connection proves itself with, and whom it trusts. Immutable and shared: a
// renewal makes another one.
struct TlsMaterial {
  CertifiedKey own;
  std::string trusted_pem;  // CAs; old and new ones while a rotation goes on
};
// As of now. Any thread, quick, never null.
using TlsSource = std::function<std::shared_ptr<const TlsMaterial>()>;

struct CertificateValidity {
  std::int64_t not_before_s = 0;
  std::int64_t not_after_s = 0;
};

// What a certificate is to say.
struct CertificateOrder {
  CertificateIdentity identity;
  std::vector<std::string> dns_names;  // for clients that compare host names
  std::vector<std::string> addresses;  // numeric
  CertificateValidity validity;
};

struct CertificateFacts {
  std::optional<CertificateIdentity> identity;
  CertificateValidity validity;
  bool authority = false;
  std::string fingerprint;  // SHA-256 in hex
};

Result<std::string> MakePrivateKey();
// Proves that whoever asks has the key; names nobody.
Result<std::string> MakeSigningRequest(const std::string& key_pem);
Result<CertifiedKey> MakeAuthority(const std::string& name, const CertificateValidity& validity);
// UNAUTHENTICATED when the request is not signed by the key it names; INVALID_ARGUMENT when it
// cannot be read or its key is not ECDSA P-256. Never valid for longer than the authority is.
Result<std::string> SignCertificate(const CertifiedKey& authority, const std::string& request_pem,
                                    const CertificateOrder& order);
// With a fresh key.
Result<CertifiedKey> IssueCertificate(const CertifiedKey& authority, const CertificateOrder& order);

// Of the first certificate in the text.
Result<CertificateFacts> ReadCertificate(const std::string& pem);
// Every certificate of a trust bundle, each of which must be an authority.
Result<std::vector<CertificateFacts>> ReadTrustBundle(const std::string& pem);
// Names a bundle by what it says: equal for equal text. SHA-256 in hex.
std::string TrustFingerprint(const std::string& pem);
// The key's own certificate?
Status CheckKeyMatches(const CertifiedKey& pair);

// Why a certificate is not taken.
enum class CertificateFault : std::uint8_t {
  kNone,
  kUnreadable,
  kUntrusted,  // nobody of the bundle signed it
  kExpired,
  kNotYetValid,
  kNoIdentity,
};
std::string_view CertificateFaultName(CertificateFault fault);

struct CertificateVerdict {
  CertificateFault fault = CertificateFault::kNone;
  std::string reason;            // for people; empty when it is good
  CertificateIdentity identity;  // when it is good
};
CertificateVerdict VerifyCertificate(const std::string& certificate_pem,
                                     const std::string& trusted_pem, std::int64_t now_s);

}  // namespace kvfabric
