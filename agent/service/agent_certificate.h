#pragma once

// AgentCertificate: what this agent proves itself with. It starts with the bootstrap bundle, which
// all agents share, and takes a certificate of its own from the operator over Control, for a key
// that it made itself and that never leaves it. At 2/3 of its life it asks for the next one.
//
// Files: BOOTSTRAP/{ca.crt,tls.crt,tls.key}, read again when they change (the operator, or the
// Secret's volume, keeps them up to date); DIRECTORY/agent.pem, mode 0600: own key and certificate.
// A certificate that has ended, or that the bundle no longer covers, is put aside: then the agent
// is back at bootstrap until the operator gives it another.
//
// Owned by main; any thread. Times are the clock's unix time.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "common/certificate.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class AgentCertificate {
 public:
  struct Options {
    std::string node_name;
    std::filesystem::path bootstrap;  // directory of the bundle
    std::filesystem::path directory;  // of our own; made when missing
    std::chrono::seconds ask_again{5};
  };
  struct Environment {
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };
  struct Report {
    bool own = false;
    std::int64_t expires_s = 0;
    std::string trusted;  // fingerprint of the bundle: TrustFingerprint
  };

  // FAILED_PRECONDITION when there is no bootstrap bundle; what is wrong with it otherwise.
  static Result<std::unique_ptr<AgentCertificate>> Open(Options options,
                                                        const Environment& environment);
  AgentCertificate(const AgentCertificate&) = delete;  // owns files
  AgentCertificate& operator=(const AgentCertificate&) = delete;

  std::shared_ptr<const TlsMaterial> material() const EXCLUDES(mu_);
  // Has a certificate of its own, and it is in force. Without one nobody may be served.
  bool own() const { return own_.load(std::memory_order_acquire); }
  Report report() const EXCLUDES(mu_);

  // A signing request, when a certificate is wanted and none was asked for lately.
  std::optional<std::string> RequestIfDue() EXCLUDES(mu_);
  // What the operator answered. INVALID_ARGUMENT when it is for another key or node, or is not
  // covered by the bundle; the present one stays.
  Status Install(const std::string& certificate_pem, const std::string& trusted_pem) EXCLUDES(mu_);
  // A new bundle alone. INVALID_ARGUMENT when it does not cover the present certificate.
  Status Trust(const std::string& trusted_pem) EXCLUDES(mu_);
  // Looks at the clock and at the bootstrap files. An error is for the log: the present state
  // stays.
  Status Check() EXCLUDES(mu_);

 private:
  AgentCertificate(Options options, const Environment& environment);

  std::int64_t Now() const { return clock_.UnixMicros() / 1'000'000; }
  Result<TlsMaterial> ReadBootstrap() const;
  // Why this is no certificate of ours under that bundle; OK = it is.
  Status Judge(const CertifiedKey& own, const std::string& trusted_pem) const;
  void Use(TlsMaterial material, bool own) REQUIRES(mu_);
  void ReadOwn() REQUIRES(mu_);

  const Options options_;
  const Clock& clock_;
  Gauge& expires_;
  Gauge& own_gauge_;
  Counter& renewals_;
  std::atomic<bool> own_{false};  // released when the material is in place

  mutable Mutex mu_;
  std::shared_ptr<const TlsMaterial> material_ GUARDED_BY(mu_);
  std::optional<TlsMaterial> bootstrap_ GUARDED_BY(mu_);
  CertificateValidity validity_ GUARDED_BY(mu_);  // of material_
  std::string trusted_ GUARDED_BY(mu_);           // fingerprint of material_'s bundle
  std::string pending_key_ GUARDED_BY(mu_);       // that a certificate was asked for
  std::int64_t asked_s_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric
