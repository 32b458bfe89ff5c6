#include "operator/controllers/certificate_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "operator/kube/object_store.h"

namespace kvfabric {

namespace {

constexpr char kAuthorityFile[] = "authority.json";
constexpr mode_t kPrivate = 0600;

}  // namespace

Status CertificateFiles::Prepare() const {
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, directory_.string() + ": make directory");
  }
  if (::chmod(directory_.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, directory_.string() + ": chmod 0700");
  }
  return Status::Ok();
}

Result<std::optional<std::string>> CertificateFiles::Load() {
  const std::filesystem::path file = directory_ / kAuthorityFile;
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    return ErrnoStatus(errno, file.string() + ": read");
  }
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return Unavailable(file.string() + ": read: cannot be read");
  return std::optional<std::string>(text.str());
}

Status CertificateFiles::Save(const std::string& text) {
  return kube::WriteFileAtomically(directory_ / kAuthorityFile, text, kPrivate);
}

Status CertificateFiles::Publish(const PublishedCertificates& certificates) const {
  const auto write = [this](const char* name, const std::string& text) {
    return kube::WriteFileAtomically(directory_ / name, text, kPrivate);
  };
  // A reader between two of these finds a key that does not match, and reads again later.
  KVF_RETURN_IF_ERROR(write("ca.crt", certificates.trusted_pem));
  KVF_RETURN_IF_ERROR(write("tls.key", certificates.bootstrap.key_pem));
  KVF_RETURN_IF_ERROR(write("tls.crt", certificates.bootstrap.certificate_pem));
  KVF_RETURN_IF_ERROR(write("admin.key", certificates.admin.key_pem));
  return write("admin.crt", certificates.admin.certificate_pem);
}

Result<std::unique_ptr<Certificates>> OpenCertificates(CertificateFiles& files, const Clock& clock,
                                                       MetricsRegistry& metrics) {
  KVF_RETURN_IF_ERROR(files.Prepare());
  Certificates::Environment environment;
  environment.store = &files;
  environment.publish = [&files](const PublishedCertificates& made) { return files.Publish(made); };
  environment.clock = &clock;
  environment.metrics = &metrics;
  return Certificates::Open({}, std::move(environment));
}

}  // namespace kvfabric
