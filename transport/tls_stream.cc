#include "transport/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using SslPtr = std::unique_ptr<SSL, Freed<SSL_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using CertificatePtr = std::unique_ptr<X509, Freed<X509_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// One TLS record; more in one SSL_write gains nothing.
constexpr std::size_t kRecordBytes = 16'384;

std::string LastError() {
  char text[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}

// A socket BIO of our own: OpenSSL's writes with write(), and a peer that went away would raise
// SIGPIPE in whatever process we are in.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int BioRead(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(FdOf(bio), to, static_cast<std::size_t>(bytes), 0);
  if (n < 0 && WouldBlock()) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}

int BioWrite(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(FdOf(bio), from, static_cast<std::size_t>(bytes), MSG_NOSIGNAL);
  if (n < 0 && WouldBlock()) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

long BioControl(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return 0;
}

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvfabric socket");
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  return method;
}

constexpr std::string_view kUriScheme = "spiffe://";
constexpr unsigned char kTlsHandshakeByte = 0x16;  // a record of type hand-shake

// The one URI of the other end's certificate.
std::string PeerUri(const SSL* ssl) {
  const X509* const certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr) return {};
  const NamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!found.empty()) return {};
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    found.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                 static_cast<std::size_t>(ASN1_STRING_length(uri)));
  }
  return found;
}

class TlsStream final : public Stream {
 public:
  // `expected_uri`: that the other end must prove; empty = any that is trusted.
  TlsStream(UniqueFd fd, std::string peer, SslPtr ssl, std::string expected_uri)
      : fd_(std::move(fd)),
        peer_(std::move(peer)),
        ssl_(std::move(ssl)),
        expected_uri_(std::move(expected_uri)) {}

  IoResult Handshake() override {
    ERR_clear_error();
    const int rc = SSL_do_handshake(ssl_.get());
    if (rc == 1) {
      identity_ = PeerUri(ssl_.get());
      if (expected_uri_.empty() || identity_ == expected_uri_) return {};
      return {IoState::kFailed, 0,
              Unauthenticated(Text("hand-shake") + ": the other end is " +
                              (identity_.empty() ? "nobody we know" : identity_) + ", expected " +
                              expected_uri_)};
    }
    IoResult result = Outcome(rc, "hand-shake");
    // What failed here is who they are, unless the socket itself did.
    if (result.state == IoState::kFailed && result.status.code() == StatusCode::kInvalidArgument) {
      result.status = Unauthenticated(result.status.message());
    }
    return result;
  }

  IoResult Read(std::span<const iovec> into) override {
    IoResult result;
    for (const iovec& vector : into) {
      std::size_t filled = 0;
      while (filled < vector.iov_len) {
        ERR_clear_error();
        std::size_t n = 0;
        const int rc = SSL_read_ex(ssl_.get(), static_cast<char*>(vector.iov_base) + filled,
                                   vector.iov_len - filled, &n);
        // What failed will fail again when nothing has come before it.
        if (rc != 1) return result.bytes > 0 ? result : Outcome(rc, "receive");
        filled += n;
        result.bytes += n;
      }
    }
    return result;
  }

  IoResult Write(std::span<const iovec> from, std::span<const int> descriptors) override {
    if (!descriptors.empty()) {
      return {IoState::kFailed, 0, InvalidArgument(peer_ + ": send: TLS carries no descriptors")};
    }
    const ByteSpan chunk = NextChunk(from);
    if (chunk.empty()) return {};
    ERR_clear_error();
    std::size_t n = 0;
    const int rc = SSL_write_ex(ssl_.get(), chunk.data(), chunk.size(), &n);
    if (rc != 1) return Outcome(rc, "send");
    return {IoState::kDone, n, {}};
  }

  bool HasBuffered() const override { return SSL_pending(ssl_.get()) > 0; }
  std::string peer_identity() const override { return identity_; }
  bool encrypted() const override { return true; }
  int fd() const override { return fd_.get(); }
  const std::string& peer() const override { return peer_; }

 private:
  // Small parts (header, body) go into one record with what follows. After WANT_WRITE the caller
  // comes again with the same bytes and perhaps more behind them, which SSL_write allows.
  ByteSpan NextChunk(std::span<const iovec> from) {
    std::size_t gathered = 0;
    for (const iovec& vector : from) {
      if (gathered == 0 && vector.iov_len >= kRecordBytes) {
        return {static_cast<const std::byte*>(vector.iov_base),
                std::min<std::size_t>(vector.iov_len, INT_MAX)};
      }
      const std::size_t n = std::min(vector.iov_len, record_.size() - gathered);
      if (n > 0) std::memcpy(record_.data() + gathered, vector.iov_base, n);
      gathered += n;
      if (gathered == record_.size()) break;
    }
    return ByteSpan(record_).first(gathered);
  }

  IoResult Outcome(int rc, std::string_view action) {
    const int error = errno;
    switch (SSL_get_error(ssl_.get(), rc)) {
      case SSL_ERROR_WANT_READ:
        return {IoState::kWantRead, 0, {}};
      case SSL_ERROR_WANT_WRITE:
        return {IoState::kWantWrite, 0, {}};
      case SSL_ERROR_ZERO_RETURN:
        return {IoState::kClosed, 0, {}};
      case SSL_ERROR_SYSCALL:
        return {IoState::kFailed, 0,
                error != 0 ? ErrnoStatus(error, Text(action)) : Unavailable(Text(action))};
      default:
        // Without close_notify: frames tell whether anything is missing.
        if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
          ERR_clear_error();
          return {IoState::kClosed, 0, {}};
        }
        return {IoState::kFailed, 0, InvalidArgument(Text(action) + ": " + LastError())};
    }
  }
  std::string Text(std::string_view action) const { return peer_ + ": TLS " + std::string(action); }

  UniqueFd fd_;
  const std::string peer_;
  SslPtr ssl_;  // before fd_ goes
  const std::string expected_uri_;
  std::string identity_;
  std::array<std::byte, kRecordBytes> record_{};
};

// TLS or not, whichever the other end begins with.
class EitherStream final : public Stream {
 public:
  EitherStream(UniqueFd fd, std::string peer, std::shared_ptr<const TlsContext> context)
      : fd_(std::move(fd)), peer_(std::move(peer)), context_(std::move(context)) {}

  IoResult Handshake() override {
    if (inner_ == nullptr) {
      unsigned char first = 0;
      const ssize_t n = ::recv(fd_.get(), &first, 1, MSG_PEEK);
      if (n == 0) return {IoState::kClosed, 0, {}};
      if (n < 0 && WouldBlock()) return {IoState::kWantRead, 0, {}};
      if (n < 0) return {IoState::kFailed, 0, ErrnoStatus(errno, peer_ + ": receive")};
      if (first == kTlsHandshakeByte) {
        Result<std::unique_ptr<Stream>> accepted = context_->Accept(std::move(fd_), peer_);
        if (!accepted.ok()) return {IoState::kFailed, 0, accepted.status()};
        inner_ = std::move(*accepted);
      } else {
        inner_ = std::make_unique<PlainStream>(std::move(fd_), peer_);
      }
      context_.reset();
    }
    return inner_->Handshake();
  }
  // After the hand-shake only.
  IoResult Read(std::span<const iovec> into) override { return inner_->Read(into); }
  IoResult Write(std::span<const iovec> from, std::span<const int> descriptors) override {
    return inner_->Write(from, descriptors);
  }
  bool HasBuffered() const override { return inner_ != nullptr && inner_->HasBuffered(); }
  std::string peer_identity() const override {
    return inner_ != nullptr ? inner_->peer_identity() : std::string();
  }
  bool encrypted() const override { return inner_ != nullptr && inner_->encrypted(); }
  int fd() const override { return inner_ != nullptr ? inner_->fd() : fd_.get(); }
  const std::string& peer() const override { return peer_; }

 private:
  UniqueFd fd_;  // until the first byte has come
  const std::string peer_;
  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<Stream> inner_;
};

BioPtr MemoryBio(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

Status Bad(std::string_view part) {
  return InvalidArgument("TLS " + std::string(part) + ": read: " + LastError());
}

Status LoadOwn(SSL_CTX* context, const TlsContext::Options& options) {
  const BioPtr chain = MemoryBio(options.certificate_pem);
  const CertificatePtr leaf(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
  if (!leaf || SSL_CTX_use_certificate(context, leaf.get()) != 1) return Bad("certificate");
  while (X509* above = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, above) != 1) {
      X509_free(above);
      return Bad("certificate chain");
    }
  }
  const BioPtr key_pem = MemoryBio(options.private_key_pem);
  const KeyPtr key(PEM_read_bio_PrivateKey(key_pem.get(), nullptr, nullptr, nullptr));
  if (!key || SSL_CTX_use_PrivateKey(context, key.get()) != 1) return Bad("private key");
  ERR_clear_error();  // the end of the chain is an error to OpenSSL
  return Status::Ok();
}

Status LoadTrusted(SSL_CTX* context, const std::string& pem) {
  const BioPtr bundle = MemoryBio(pem);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  int added = 0;
  while (CertificatePtr authority{PEM_read_bio_X509(bundle.get(), nullptr, nullptr, nullptr)}) {
    if (X509_STORE_add_cert(store, authority.get()) != 1) return Bad("trust bundle");
    ++added;
  }
  if (added == 0) return Bad("trust bundle");
  ERR_clear_error();
  return Status::Ok();
}

class OpenSslContext final : public TlsContext {
 public:
  explicit OpenSslContext(SslContextPtr context) : context_(std::move(context)) {}

  Result<std::unique_ptr<Stream>> Accept(UniqueFd fd, std::string peer) const override {
    KVF_ASSIGN_OR_RETURN(SslPtr ssl, NewSsl(fd.get()));
    SSL_set_accept_state(ssl.get());
    return Made(std::move(fd), std::move(peer), std::move(ssl));
  }

  Result<std::unique_ptr<Stream>> Connect(UniqueFd fd, std::string peer,
                                          const std::string& expected_name) const override {
    KVF_ASSIGN_OR_RETURN(SslPtr ssl, NewSsl(fd.get()));
    SSL_set_connect_state(ssl.get());
    if (expected_name.compare(0, kUriScheme.size(), kUriScheme) == 0) {
      return Made(std::move(fd), std::move(peer), std::move(ssl), expected_name);
    }
    // An address is compared with addresses, a name with names.
    X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl.get());
    if (X509_VERIFY_PARAM_set1_ip_asc(verify, expected_name.c_str()) != 1) {
      ERR_clear_error();
      // The macro SSL_set_tlsext_host_name, without its old-style cast.
      if (SSL_ctrl(ssl.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                   const_cast<char*>(expected_name.c_str())) != 1 ||
          SSL_set1_host(ssl.get(), expected_name.c_str()) != 1) {
        return InvalidArgument(peer + ": TLS expected name: " + LastError());
      }
    }
    return Made(std::move(fd), std::move(peer), std::move(ssl));
  }

 private:
  Result<SslPtr> NewSsl(int fd) const {
    SslPtr ssl(SSL_new(context_.get()));
    BIO* const bio = BIO_new(SocketMethod());
    if (!ssl || bio == nullptr) return Internal("TLS: make a stream: " + LastError());
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl.get(), bio, bio);
    return ssl;
  }
  static std::unique_ptr<Stream> Made(UniqueFd fd, std::string peer, SslPtr ssl,
                                      std::string expected_uri = {}) {
    return std::make_unique<TlsStream>(std::move(fd), std::move(peer), std::move(ssl),
                                       std::move(expected_uri));
  }

  const SslContextPtr context_;
};

}  // namespace

std::unique_ptr<Stream> TlsContext::AcceptEither(UniqueFd fd, std::string peer) const {
  return std::make_unique<EitherStream>(std::move(fd), std::move(peer), shared_from_this());
}

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const Options& options) {
  SslContextPtr context(SSL_CTX_new(TLS_method()));
  if (!context) return Internal("TLS: make a context: " + LastError());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // No resumption: every connection proves who it is now.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  KVF_RETURN_IF_ERROR(LoadOwn(context.get(), options));
  KVF_RETURN_IF_ERROR(LoadTrusted(context.get(), options.trusted_pem));
  return std::shared_ptr<const TlsContext>(std::make_shared<OpenSslContext>(std::move(context)));
}

}  // namespace kvfabric
