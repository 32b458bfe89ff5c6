#include "api/grpc_tls.h"

// Before gRPC, which brings macros of the same names along.
// clang-format off
#include "common/mutex.h"
// clang-format on

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace kvfabric {

namespace {

// gRPC 1.51 takes no least version for credentials that are asked for at each connection, but a
// list of TLS 1.2 ciphers, once a process, from its environment (those of 1.3 are not on that
// list). Our keys are all ECDSA, so with RSA ciphers alone no handshake below 1.3 can succeed. Set
// before any thread runs.
[[maybe_unused]] const bool kNoOlderTls = [] {
  return ::setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384", 1) == 0;
}();

// What gRPC asks for a certificate at each connection.
class CertificateFetcher {
 public:
  explicit CertificateFetcher(TlsSource source) : source_(std::move(source)) {}

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* fetcher, grpc_ssl_server_certificate_config** config) {
    return static_cast<CertificateFetcher*>(fetcher)->Fetch(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config)
      EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::shared_ptr<const TlsMaterial> now = source_();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{now->own.key_pem.c_str(),
                                          now->own.certificate_pem.c_str()};
    *config = grpc_ssl_server_certificate_config_create(now->trusted_pem.c_str(), &pair, 1);
    given_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsSource source_;
  Mutex mu_;
  std::shared_ptr<const TlsMaterial> given_ GUARDED_BY(mu_);
};

// gRPC's own C++ credentials take a certificate once, or from files that it polls; its C interface
// asks at each connection.
class ReloadingServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingServerCredentials(TlsSource source)
      : fetcher_(std::move(source)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY, CertificateFetcher::Fetch,
                &fetcher_))) {
    KVF_CHECK(credentials_ != nullptr, "gRPC makes no TLS credentials");
  }
  ~ReloadingServerCredentials() override { grpc_server_credentials_release(credentials_); }
  ReloadingServerCredentials(const ReloadingServerCredentials&) = delete;  // owns a reference
  ReloadingServerCredentials& operator=(const ReloadingServerCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  CertificateFetcher fetcher_;
  grpc_server_credentials* const credentials_;
};

constexpr std::array<const char*, 6> kReasons = {"untrusted",   "wrong_identity",  "not_tls",
                                                 "old_version", "refused_by_peer", "other"};

const char* ReasonOf(std::string_view text) {
  const auto says = [text](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  };
  if (says("certificate verify failed")) return "untrusted";
  if (says("alert")) return "refused_by_peer";
  if (says("wrong version number") || says("http request") || says("https proxy request") ||
      says("packet length") || says("not in record") || says("bad record type") ||
      says("unknown protocol")) {
    return "not_tls";
  }
  if (says("no shared cipher") || says("unsupported protocol") || says("no protocols available") ||
      says("version too low")) {
    return "old_version";
  }
  return "other";
}

}  // namespace

class HandshakeWatch::Counts {
 public:
  Counts(MetricsRegistry& metrics, const std::string& prefix) {
    for (const char* reason : kReasons) {
      kinds_[reason].total =
          &metrics.GetCounter(prefix + "_tls_refused_total",
                              "TLS handshakes that failed, by reason", {{"reason", reason}});
    }
  }

  // True when this one should be logged.
  bool Note(const char* reason) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Kind& kind = kinds_.at(reason);
    kind.total->Add();
    const auto now = std::chrono::steady_clock::now();
    if (kind.logged != std::chrono::steady_clock::time_point() &&
        now - kind.logged < std::chrono::seconds(1)) {
      return false;
    }
    kind.logged = now;
    return true;
  }

 private:
  struct Kind {
    Counter* total = nullptr;
    std::chrono::steady_clock::time_point logged{};
  };
  Mutex mu_;
  std::map<std::string, Kind, std::less<>> kinds_ GUARDED_BY(mu_);
};

namespace {

// The watches that live. Never destroyed: gRPC's threads may log while the process ends.
struct Watches {
  Mutex mu;
  std::vector<std::shared_ptr<HandshakeWatch::Counts>> all GUARDED_BY(mu);
};
Watches& TheWatches() {
  static auto* const watches = new Watches;
  return *watches;
}

void NoteRefusal(const char* reason, const std::string& text) {
  std::vector<std::shared_ptr<HandshakeWatch::Counts>> all;
  {
    MutexLock lock(TheWatches().mu);
    all = TheWatches().all;
  }
  bool log = all.empty();
  for (const auto& counts : all) log = counts->Note(reason) || log;
  if (log) LogWarn("TLS handshake refused", {{"reason", reason}, {"detail", text}});
}

void OnGrpcLog(gpr_log_func_args* line) {
  const std::string text(line->message,
                         std::min(std::string_view(line->message).size(), std::size_t{512}));
  if (text.find("Handshake failed") != std::string::npos) {
    NoteRefusal(ReasonOf(text), text);
  } else if (line->severity == GPR_LOG_SEVERITY_ERROR) {
    LogWarn("grpc", {{"text", text}});
  } else {
    LogDebug("grpc", {{"text", text}});
  }
}

// The server must be whom the caller means to reach.
class IdentityVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit IdentityVerifier(std::vector<CertificateIdentity> expected)
      : expected_(std::move(expected)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const std::vector<grpc::string_ref> uris = request->uri_names();
    const auto identity = uris.size() == 1
                              ? CertificateIdentity::Parse({uris[0].data(), uris[0].size()})
                              : std::nullopt;
    if (identity && std::find(expected_.begin(), expected_.end(), *identity) != expected_.end()) {
      *status = grpc::Status::OK;
      return true;
    }
    std::string wanted;
    for (const CertificateIdentity& one : expected_) {
      wanted += (wanted.empty() ? "" : " or ") + one.ToString();
    }
    const std::string text = "the server is " +
                             (identity ? identity->ToString() : std::string("nobody we know")) +
                             ", expected " + wanted;
    NoteRefusal("wrong_identity", text);
    *status = {grpc::StatusCode::UNAUTHENTICATED, text};
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::vector<CertificateIdentity> expected_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsSource source) {
  return std::make_shared<ReloadingServerCredentials>(std::move(source));
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const TlsMaterial& material, std::vector<CertificateIdentity> expected) {
  using grpc::experimental::ExternalCertificateVerifier;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
          material.trusted_pem, std::vector<grpc::experimental::IdentityKeyCertPair>{
                                    {material.own.key_pem, material.own.certificate_pem}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<IdentityVerifier>(std::move(expected)));
  options.set_check_call_host(false);  // identities are URIs, never host names
  return grpc::experimental::TlsCredentials(options);
}

std::optional<CertificateIdentity> CallerIdentity(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return std::nullopt;
  const std::vector<grpc::string_ref> uris = auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME);
  if (uris.size() != 1) return std::nullopt;
  return CertificateIdentity::Parse({uris[0].data(), uris[0].size()});
}

HandshakeWatch::HandshakeWatch(MetricsRegistry& metrics, const std::string& prefix)
    : counts_(std::make_shared<Counts>(metrics, prefix)) {
  static std::once_flag once;
  std::call_once(once, [] { gpr_set_log_function(OnGrpcLog); });
  MutexLock lock(TheWatches().mu);
  TheWatches().all.push_back(counts_);
}

HandshakeWatch::~HandshakeWatch() {
  MutexLock lock(TheWatches().mu);
  std::erase(TheWatches().all, counts_);
}

}  // namespace kvfabric
