#pragma once

// Certificates: the fabric's own CA. It makes it once, signs what agents ask for, keeps the
// operator's, the admin's and the bootstrap certificate fresh, and rotates the CA without a gap:
// the new CA joins the bundle; once every agent has reported that bundle the new one signs; the
// old one leaves when the last certificate it signed has ended.
//
// One thread (the control loop's) calls Step, Sign and BeginRotation; own() and trusted() any
// thread. Nothing is signed that could not be stored first. Times are the clock's unix time.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/certificate.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

// Where the CA's keys are kept: a file of mode 0600 in local mode, a Secret in a cluster.
class CertificateStore {
 public:
  virtual ~CertificateStore() = default;
  virtual Result<std::optional<std::string>> Load() = 0;  // nullopt = nothing yet
  virtual Status Save(const std::string& text) = 0;
};

// Who gets what the operator publishes: files in local mode, a Secret in a cluster.
struct PublishedCertificates {
  std::string trusted_pem;
  CertifiedKey bootstrap;
  CertifiedKey admin;
};
using PublishCertificates = std::function<Status(const PublishedCertificates&)>;

class Certificates {
 public:
  struct Options {
    std::chrono::seconds lifetime{30 * 24 * 3600};                 // of agents, operator and admin
    std::chrono::seconds authority_lifetime{5 * 365 * 24 * 3600};  // replaced after 2/3 of it
  };
  struct Environment {
    CertificateStore* store = nullptr;
    PublishCertificates publish;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  // Makes the CA when the store has none, and publishes.
  static Result<std::unique_ptr<Certificates>> Open(const Options& options,
                                                    Environment environment);
  Certificates(const Certificates&) = delete;  // holds the CA's key
  Certificates& operator=(const Certificates&) = delete;

  // What the operator itself speaks with.
  std::shared_ptr<const TlsMaterial> own() const EXCLUDES(mu_);
  // The bundle everybody is to trust now, and its fingerprint.
  std::string trusted() const EXCLUDES(mu_) { return own()->trusted_pem; }
  const std::string& trusted_fingerprint() const { return fingerprint_; }

  // For the agent of a node; the name is what the operator knows, never what the request says.
  Result<std::string> Sign(const std::string& request_pem, const std::string& node_name,
                           const std::string& address);
  // Renews what is due and moves a rotation on. `all_trust`: every agent has reported
  // trusted_fingerprint(). An error is for the log; the next Step tries again.
  Status Step(bool all_trust);
  // Ahead of time; OK while one goes on already.
  Status BeginRotation();
  bool rotating() const { return authorities_.size() > 1; }

 private:
  struct Authority {
    CertifiedKey pair;
    CertificateValidity validity;
    std::int64_t last_signed_until_s = 0;  // when all it has signed has ended; 0 = it signs still
  };

  Certificates(const Options& options, Environment environment);
  std::int64_t Now() const { return environment_.clock->UnixMicros() / 1'000'000; }
  CertificateValidity ValidityFor(std::chrono::seconds lifetime) const;
  Result<Authority> NewAuthority() const;
  Status Decode(const std::string& text);
  std::string Encode() const;
  // Stores `authorities` and makes them the ones in force, with all that hangs on them.
  Status Adopt(std::vector<Authority> authorities, std::size_t signing);
  // Fresh certificates for operator, admin and bootstrap; publishes them.
  Status Refresh() EXCLUDES(mu_);
  std::string Bundle() const;

  const Options options_;
  const Environment environment_;
  Gauge& authority_expires_;
  Gauge& own_expires_;
  Counter& signed_;
  Counter& refused_;
  std::vector<Authority> authorities_;  // old first
  std::size_t signing_ = 0;             // index of the one that signs
  std::string fingerprint_;
  CertificateValidity own_validity_;
  bool stale_ = false;  // what is published is not of authorities_ yet

  mutable Mutex mu_;
  std::shared_ptr<const TlsMaterial> own_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
