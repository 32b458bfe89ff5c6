#include "operator/kube/pem.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <climits>
#include <memory>

namespace kvfabric::kube {
namespace {

template <typename T, auto Free>
struct Deleter {
  void operator()(T* object) const { Free(object); }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY, EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, Deleter<X509, X509_free>>;
using BioPtr = std::unique_ptr<BIO, Deleter<BIO, BIO_free_all>>;

BioPtr Open(const std::string& text) {
  if (text.size() > INT_MAX) return nullptr;
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Never ask a terminal for a pass phrase.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*user*/) { return -1; }

}  // namespace

Result<std::string> DecodeBase64(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (const char c : text) {
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') plain += c;
  }
  if (plain.size() % 4 != 0 || plain.size() > INT_MAX) return InvalidArgument("not base64");
  std::string out(plain.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(plain.data()),
                                   static_cast<int>(plain.size()));
  if (size < 0) return InvalidArgument("not base64");
  // EVP_DecodeBlock gives zero bytes for the padding.
  std::size_t padding = 0;
  while (padding < 2 && padding < plain.size() && plain[plain.size() - 1 - padding] == '=') {
    ++padding;
  }
  out.resize(static_cast<std::size_t>(size) - padding);
  return out;
}

std::string EncodeBase64(std::string_view text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');  // and the zero that it writes
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(text.data()),
                  static_cast<int>(text.size()));
  out.pop_back();
  return out;
}

Status CheckCertificates(const std::string& pem) {
  const BioPtr bio = Open(pem);
  std::size_t found = 0;
  while (bio != nullptr) {
    const CertificatePtr certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
    if (certificate == nullptr) break;
    ++found;
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (found > 0 && at_end) return Status::Ok();
  return InvalidArgument("certificate " + std::to_string(found + 1) +
                         " is not a certificate in PEM form");
}

Status CheckKeyPair(const std::string& certificate_pem, const std::string& key_pem) {
  KVF_RETURN_IF_ERROR(CheckCertificates(certificate_pem));
  const BioPtr certificate_bio = Open(certificate_pem);
  const BioPtr key_bio = Open(key_pem);
  const CertificatePtr certificate(
      PEM_read_bio_X509(certificate_bio.get(), nullptr, NoPassphrase, nullptr));
  const KeyPtr key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, NoPassphrase, nullptr));
  const bool match = certificate != nullptr && key != nullptr &&
                     X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) return InvalidArgument("the key is not a plain private key in PEM form");
  if (!match) return InvalidArgument("the key is not that of the certificate");
  return Status::Ok();
}

}  // namespace kvfabric::kube
