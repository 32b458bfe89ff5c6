#include "common/certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <climits>
#include <ctime>
#include <memory>
#include <span>
#include <utility>

#include "common/bytes.h"

namespace kvfabric {

namespace {

constexpr std::string_view kTrustDomain = "spiffe://kvfabric/";
constexpr std::size_t kMaxPemBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxNameBytes = 253;  // of a Kubernetes node name
constexpr std::size_t kSerialBytes = 16;
constexpr char kCurve[] = "P-256";

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, Freed<X509_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, Freed<X509_REQ_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using NumberPtr = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

std::string LastError() {
  std::array<char, 256> text{"no reason given"};
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, text.data(), text.size());
  }
  ERR_clear_error();
  return text.data();
}

Status Failure(std::string_view step) {
  return Internal("certificate: " + std::string(step) + ": " + LastError());
}
Status Unreadable(std::string_view part) {
  return InvalidArgument(std::string(part) + ": read: " + LastError());
}

BioPtr MemoryBio(const std::string& pem) {
  const std::size_t bytes = pem.size() <= kMaxPemBytes ? pem.size() : 0;
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(bytes)));
}
std::string Drain(const BioPtr& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

// A file that wants a pass phrase must not make a daemon ask its terminal.
int NoPassPhrase(char* /*to*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

CertificatePtr NextCertificate(const BioPtr& bio) {
  return CertificatePtr(PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, nullptr));
}
Result<CertificatePtr> ParseCertificate(const std::string& pem) {
  ERR_clear_error();
  CertificatePtr certificate = NextCertificate(MemoryBio(pem));
  if (certificate == nullptr) return Unreadable("certificate");
  return certificate;
}
Result<KeyPtr> ParseKey(const std::string& pem) {
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(MemoryBio(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (key == nullptr) return Unreadable("private key");
  return key;
}
// Reads to the end; text that is cut in the middle of one is a fault.
Result<std::vector<CertificatePtr>> ParseBundle(const std::string& pem) {
  ERR_clear_error();
  const BioPtr bio = MemoryBio(pem);
  std::vector<CertificatePtr> bundle;
  while (CertificatePtr next = NextCertificate(bio)) bundle.push_back(std::move(next));
  if (bundle.empty() || ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
    return Unreadable("trust bundle");
  }
  ERR_clear_error();
  return bundle;
}

Result<std::string> CertificateText(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), certificate) != 1) return Failure("write");
  return Drain(bio);
}
Result<std::string> KeyText(EVP_PKEY* key) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failure("write key");
  }
  return Drain(bio);
}

Result<KeyPtr> NewKey() {
  KeyPtr key(EVP_EC_gen(kCurve));
  if (key == nullptr) return Failure("make key");
  return key;
}

bool IsP256(EVP_PKEY* key) {
  std::array<char, 32> group{};
  std::size_t bytes = 0;
  return key != nullptr && EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
         EVP_PKEY_get_group_name(key, group.data(), group.size(), &bytes) == 1 &&
         OBJ_txt2nid(group.data()) == NID_X9_62_prime256v1;
}

bool AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool AddCommonName(X509_NAME* to, std::string_view text) {
  // X.520 takes at most 64 characters; the identity proper is in the URI.
  const std::string shown(text.substr(0, 64));
  return X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(shown.data()),
                                    static_cast<int>(shown.size()), -1, 0) == 1;
}

bool SetSerial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) return false;
  random[0] = static_cast<unsigned char>((random[0] & 0x3FU) | 0x40U);  // positive, never short
  const NumberPtr number(BN_bin2bn(random.data(), static_cast<int>(random.size()), nullptr));
  return number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetFrame(X509* certificate, EVP_PKEY* key, std::string_view name,
              const CertificateValidity& validity) {
  return X509_set_version(certificate, X509_VERSION_3) == 1 && SetSerial(certificate) &&
         ASN1_TIME_set(X509_getm_notBefore(certificate), validity.not_before_s) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), validity.not_after_s) != nullptr &&
         X509_set_pubkey(certificate, key) == 1 &&
         AddCommonName(X509_get_subject_name(certificate), name);
}

std::int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? ::timegm(&parts) : 0;
}

// Characters that mean nothing in OpenSSL's extension syntax and in URIs.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '.' || c == '_' || c == ':';
         });
}

Result<std::string> AlternativeNames(const CertificateOrder& order) {
  const auto bad = [](const std::string& name) {
    return InvalidArgument("certificate: name \"" + name +
                           "\": must be letters, digits, '-', '.', '_', ':'");
  };
  const bool named = order.identity.role == CertificateIdentity::Role::kAgent ||
                     order.identity.role == CertificateIdentity::Role::kTenant;
  if (named && !IsPlainName(order.identity.name)) return bad(order.identity.name);
  std::string text = "URI:" + order.identity.ToString();
  for (const std::string& name : order.dns_names) {
    if (!IsPlainName(name)) return bad(name);
    text += ",DNS:" + name;
  }
  for (const std::string& address : order.addresses) {
    if (!IsPlainName(address)) return bad(address);
    text += ",IP:" + address;
  }
  return text;
}

std::string Fingerprint(const X509* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  if (X509_digest(certificate, EVP_sha256(), digest.data(), &bytes) != 1) return "";
  return ToHex(std::as_bytes(std::span(digest).first(bytes)));
}

// Exactly one URI, and one of ours.
std::optional<CertificateIdentity> IdentityOf(const X509* certificate) {
  const NamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::optional<CertificateIdentity> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (found) return std::nullopt;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    found = CertificateIdentity::Parse({reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                        static_cast<std::size_t>(ASN1_STRING_length(uri))});
    if (!found) return std::nullopt;
  }
  return found;
}

CertificateFacts FactsOf(X509* certificate) {
  CertificateFacts facts;
  facts.identity = IdentityOf(certificate);
  facts.validity = {UnixSeconds(X509_get0_notBefore(certificate)),
                    UnixSeconds(X509_get0_notAfter(certificate))};
  facts.authority = X509_check_ca(certificate) == 1;
  facts.fingerprint = Fingerprint(certificate);
  return facts;
}

CertificateFault FaultOf(int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return CertificateFault::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return CertificateFault::kNotYetValid;
    default:
      return CertificateFault::kUntrusted;
  }
}

}  // namespace

std::string CertificateIdentity::ToString() const {
  std::string text(kTrustDomain);
  switch (role) {
    case Role::kAgent:
      return text + "agent/" + name;
    case Role::kOperator:
      return text + "operator";
    case Role::kAdmin:
      return text + "admin";
    case Role::kTenant:
      return text + "tenant/" + name;
    case Role::kBootstrap:
      return text + "bootstrap";
  }
  return text;
}

std::optional<CertificateIdentity> CertificateIdentity::Parse(std::string_view uri) {
  if (uri.substr(0, kTrustDomain.size()) != kTrustDomain) return std::nullopt;
  uri.remove_prefix(kTrustDomain.size());
  const std::size_t slash = uri.find('/');
  const std::string_view role = uri.substr(0, slash);
  if (slash == std::string_view::npos) {
    if (role == "operator") return CertificateIdentity{Role::kOperator, ""};
    if (role == "admin") return CertificateIdentity{Role::kAdmin, ""};
    if (role == "bootstrap") return CertificateIdentity{Role::kBootstrap, ""};
    return std::nullopt;
  }
  const std::string_view name = uri.substr(slash + 1);
  if (!IsPlainName(name)) return std::nullopt;
  if (role == "agent") return CertificateIdentity{Role::kAgent, std::string(name)};
  if (role == "tenant") return CertificateIdentity{Role::kTenant, std::string(name)};
  return std::nullopt;
}

Result<std::string> MakePrivateKey() {
  KVF_ASSIGN_OR_RETURN(const KeyPtr key, NewKey());
  return KeyText(key.get());
}

Result<std::string> MakeSigningRequest(const std::string& key_pem) {
  KVF_ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(key_pem));
  const RequestPtr request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return Failure("make request");
  }
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509_REQ(bio.get(), request.get()) != 1) return Failure("write request");
  return Drain(bio);
}

Result<CertifiedKey> MakeAuthority(const std::string& name, const CertificateValidity& validity) {
  KVF_ASSIGN_OR_RETURN(const KeyPtr key, NewKey());
  const CertificatePtr made(X509_new());
  if (made == nullptr || !SetFrame(made.get(), key.get(), name, validity) ||
      X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) != 1 ||
      !AddExtension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(made.get(), made.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(made.get(), key.get(), EVP_sha256()) == 0) {
    return Failure("make authority");
  }
  CertifiedKey pair;
  KVF_ASSIGN_OR_RETURN(pair.certificate_pem, CertificateText(made.get()));
  KVF_ASSIGN_OR_RETURN(pair.key_pem, KeyText(key.get()));
  return pair;
}

Result<std::string> SignCertificate(const CertifiedKey& authority, const std::string& request_pem,
                                    const CertificateOrder& order) {
  ERR_clear_error();
  const RequestPtr request(
      PEM_read_bio_X509_REQ(MemoryBio(request_pem).get(), nullptr, NoPassPhrase, nullptr));
  if (request == nullptr) return Unreadable("certificate request");
  EVP_PKEY* const subject_key = X509_REQ_get0_pubkey(request.get());
  if (!IsP256(subject_key)) {
    return InvalidArgument("certificate request: its key is not ECDSA P-256: make such a key");
  }
  if (X509_REQ_verify(request.get(), subject_key) != 1) {
    ERR_clear_error();
    return Unauthenticated("certificate request: not signed by the key it names");
  }
  KVF_ASSIGN_OR_RETURN(const CertificatePtr issuer, ParseCertificate(authority.certificate_pem));
  KVF_ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(authority.key_pem));
  KVF_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(order));
  CertificateValidity validity = order.validity;
  validity.not_after_s =
      std::min(validity.not_after_s, UnixSeconds(X509_get0_notAfter(issuer.get())));
  const CertificatePtr made(X509_new());
  if (made == nullptr ||
      !SetFrame(made.get(), subject_key, order.identity.ToString().substr(kTrustDomain.size()),
                validity) ||
      X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) != 1 ||
      !AddExtension(made.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(made.get(), issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(made.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(made.get(), issuer.get(), NID_authority_key_identifier, "keyid:always") ||
      !AddExtension(made.get(), issuer.get(), NID_subject_alt_name, names) ||
      X509_sign(made.get(), key.get(), EVP_sha256()) == 0) {
    return Failure("sign");
  }
  return CertificateText(made.get());
}

Result<CertifiedKey> IssueCertificate(const CertifiedKey& authority,
                                      const CertificateOrder& order) {
  CertifiedKey pair;
  KVF_ASSIGN_OR_RETURN(pair.key_pem, MakePrivateKey());
  KVF_ASSIGN_OR_RETURN(const std::string request, MakeSigningRequest(pair.key_pem));
  KVF_ASSIGN_OR_RETURN(pair.certificate_pem, SignCertificate(authority, request, order));
  return pair;
}

Result<CertificateFacts> ReadCertificate(const std::string& pem) {
  KVF_ASSIGN_OR_RETURN(const CertificatePtr certificate, ParseCertificate(pem));
  return FactsOf(certificate.get());
}

Result<std::vector<CertificateFacts>> ReadTrustBundle(const std::string& pem) {
  KVF_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> bundle, ParseBundle(pem));
  std::vector<CertificateFacts> facts;
  for (const CertificatePtr& certificate : bundle) {
    facts.push_back(FactsOf(certificate.get()));
    if (!facts.back().authority) {
      return InvalidArgument("trust bundle: certificate " + std::to_string(facts.size()) +
                             " is no authority: write CA certificates only");
    }
  }
  return facts;
}

std::string TrustFingerprint(const std::string& pem) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  if (EVP_Digest(pem.data(), pem.size(), digest.data(), &bytes, EVP_sha256(), nullptr) != 1) {
    return "";
  }
  return ToHex(std::as_bytes(std::span(digest).first(bytes)));
}

Status CheckKeyMatches(const CertifiedKey& pair) {
  KVF_ASSIGN_OR_RETURN(const CertificatePtr certificate, ParseCertificate(pair.certificate_pem));
  KVF_ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(pair.key_pem));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("certificate: is another key's");
  }
  return Status::Ok();
}

std::string_view CertificateFaultName(CertificateFault fault) {
  switch (fault) {
    case CertificateFault::kNone:
      return "none";
    case CertificateFault::kUnreadable:
      return "unreadable";
    case CertificateFault::kUntrusted:
      return "untrusted";
    case CertificateFault::kExpired:
      return "expired";
    case CertificateFault::kNotYetValid:
      return "not_yet_valid";
    case CertificateFault::kNoIdentity:
      return "no_identity";
  }
  return "unknown";
}

CertificateVerdict VerifyCertificate(const std::string& certificate_pem,
                                     const std::string& trusted_pem, std::int64_t now_s) {
  const auto certificate = ParseCertificate(certificate_pem);
  if (!certificate.ok()) {
    return {CertificateFault::kUnreadable, certificate.status().message(), {}};
  }
  const auto bundle = ParseBundle(trusted_pem);
  if (!bundle.ok()) return {CertificateFault::kUntrusted, bundle.status().message(), {}};
  const StorePtr store(X509_STORE_new());
  const StoreContextPtr context(X509_STORE_CTX_new());
  bool ready = store != nullptr && context != nullptr;
  for (const CertificatePtr& authority : *bundle) {
    ready = ready && X509_STORE_add_cert(store.get(), authority.get()) == 1;
  }
  if (!ready || X509_STORE_CTX_init(context.get(), store.get(), certificate->get(), nullptr) != 1) {
    return {CertificateFault::kUntrusted, Failure("verify").message(), {}};
  }
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), now_s);
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    ERR_clear_error();
    return {
        FaultOf(error), std::string("certificate: ") + X509_verify_cert_error_string(error), {}};
  }
  const std::optional<CertificateIdentity> identity = IdentityOf(certificate->get());
  if (!identity) {
    return {CertificateFault::kNoIdentity, "certificate: names no identity of the fabric", {}};
  }
  return {CertificateFault::kNone, "", *identity};
}

}  // namespace kvfabric
