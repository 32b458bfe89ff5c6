#pragma once

// Credentials: what a request to the API server proves itself with, fresh each time: a bearer token
// (given, from a file, or from a plugin), the authorities to trust, a client certificate. Files are
// read again while they are in use, because kubelet and certificate managers replace them; a file
// that is unreadable, empty or half-written never takes the place of what was good.
//
// Owned by an ApiSession; any thread may call. Only a plugin makes Get block, up to its deadline.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "operator/kube/exec_plugin.h"
#include "operator/kube/http_transport.h"

namespace kvfabric::kube {

// Of each pair the text goes before the file.
struct CredentialConfig {
  std::string ca_pem;  // both empty: the system's authorities
  std::filesystem::path ca_file;
  std::string token;
  std::filesystem::path token_file;  // goes before the token
  std::string certificate_pem;
  std::filesystem::path certificate_file;
  std::string key_pem;
  std::filesystem::path key_file;
  std::optional<ExecConfig> exec;
};

// What one request was sent with; given back when the API refuses it.
struct Proof {
  std::string authorization;  // "" = none
  std::shared_ptr<const TlsMaterial> tls;
  std::optional<ExecCredential> exec;
};

class Credentials {
 public:
  struct Options {
    std::chrono::seconds token_period{50};  // 60 s less 10 s, as other clients do
    std::chrono::seconds file_period{300};  // authorities and client certificates
    ExecPlugin::Options exec{};
  };

  // Reads every file once: an error here is one of the configuration.
  static Result<std::unique_ptr<Credentials>> Create(CredentialConfig config, const Clock& clock,
                                                     Options options);
  static Result<std::unique_ptr<Credentials>> Create(CredentialConfig config, const Clock& clock);
  Credentials(const Credentials&) = delete;  // owns a plugin
  Credentials& operator=(const Credentials&) = delete;

  Result<Proof> Get() EXCLUDES(mu_);
  // The API answered 401: what came from a file or plugin is asked for anew by the next Get. False
  // when there is nothing but what was refused, so that trying again is useless.
  bool Reject(const Proof& proof) EXCLUDES(mu_);
  // Since the token changed, or was first read; nullopt without one.
  std::optional<std::chrono::seconds> TokenAge() const EXCLUDES(mu_);
  // Ends a plugin that runs; Get fails from now on.
  void Stop();

 private:
  Credentials(CredentialConfig config, const Clock& clock, Options options);
  Status FirstRead() EXCLUDES(mu_);
  void ReadToken() EXCLUDES(mu_);
  void ReadTls() EXCLUDES(mu_);
  Result<std::shared_ptr<const TlsMaterial>> LoadTls() const;
  void KeepToken(std::string token) REQUIRES(mu_);

  const CredentialConfig config_;
  const Clock& clock_;  // borrowed; outlives this
  const Options options_;
  std::unique_ptr<ExecPlugin> plugin_;  // constant after Create

  mutable Mutex mu_;
  std::string token_ GUARDED_BY(mu_);
  Clock::TimePoint token_since_ GUARDED_BY(mu_){};
  Clock::TimePoint token_due_ GUARDED_BY(mu_){};  // read the file again from here on
  std::shared_ptr<const TlsMaterial> tls_ GUARDED_BY(mu_);
  Clock::TimePoint tls_due_ GUARDED_BY(mu_){};
};

// Pure: the text of a token file without white space around it; INVALID_ARGUMENT when nothing is
// left, or something no token holds.
Result<std::string> TokenOfText(std::string_view text);

}  // namespace kvfabric::kube
