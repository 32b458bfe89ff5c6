#pragma once

// Where certificates lie in local mode: a directory of mode 0700 with
//   ca.crt, tls.crt, tls.key   the bootstrap bundle that agents start with
//   admin.crt, admin.key       for people's gRPC clients
//   authority.json             the CA's keys; nobody but the operator reads it
// All files 0600, each replaced as a whole.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "operator/controllers/certificates.h"

namespace kvfabric {

class CertificateFiles final : public CertificateStore {
 public:
  explicit CertificateFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Makes the directory.
  Status Prepare() const;
  Result<std::optional<std::string>> Load() override;
  Status Save(const std::string& text) override;
  Status Publish(const PublishedCertificates& certificates) const;

 private:
  const std::filesystem::path directory_;
};

// The CA that is kept in `files` (borrowed, as the others), made there when there is none.
Result<std::unique_ptr<Certificates>> OpenCertificates(CertificateFiles& files, const Clock& clock,
                                                       MetricsRegistry& metrics);

}  // namespace kvfabric
