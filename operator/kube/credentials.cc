#include "operator/kube/credentials.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "operator/kube/pem.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(path.string() + ": read: no such file, or not readable");
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) return Unavailable(path.string() + ": read: failed");
  if (text.size() > kMaxFileBytes) return InvalidArgument(path.string() + ": longer than 1 MiB");
  return text;
}

Result<std::string> TextOr(const std::string& text, const std::filesystem::path& file) {
  if (!text.empty() || file.empty()) return text;
  return ReadFile(file);
}

bool HasTlsFiles(const CredentialConfig& config) {
  return !config.ca_file.empty() || !config.certificate_file.empty() || !config.key_file.empty();
}

}  // namespace

Result<std::string> TokenOfText(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  if (text.empty()) return InvalidArgument("it is empty");
  // It goes into a header line.
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; })) {
    return InvalidArgument("it holds characters that no token has");
  }
  return std::string(text);
}

Credentials::Credentials(CredentialConfig config, const Clock& clock, Options options)
    : config_(std::move(config)), clock_(clock), options_(options) {}

Result<std::unique_ptr<Credentials>> Credentials::Create(CredentialConfig config,
                                                         const Clock& clock, Options options) {
  std::unique_ptr<Credentials> out(new Credentials(std::move(config), clock, options));
  KVF_RETURN_IF_ERROR(out->FirstRead());
  return out;
}

Result<std::unique_ptr<Credentials>> Credentials::Create(CredentialConfig config,
                                                         const Clock& clock) {
  return Create(std::move(config), clock, Options());
}

Status Credentials::FirstRead() {
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<const TlsMaterial> tls, LoadTls());
  if (config_.exec.has_value()) {
    ExecConfig exec = *config_.exec;
    exec.ca_pem = tls->ca;
    plugin_ = std::make_unique<ExecPlugin>(std::move(exec), clock_, options_.exec);
  }
  std::string token = config_.token;
  if (!config_.token_file.empty()) {
    KVF_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_.token_file));
    Result<std::string> read = TokenOfText(text);
    if (!read.ok()) return read.status().WithContext(config_.token_file.string());
    token = std::move(read).value();
  } else if (!token.empty()) {
    Result<std::string> read = TokenOfText(token);
    if (!read.ok()) return read.status().WithContext("token");
    token = std::move(read).value();
  }
  MutexLock lock(mu_);
  tls_ = std::move(tls);
  tls_due_ = clock_.Now() + options_.file_period;
  token_due_ = clock_.Now() + options_.token_period;
  KeepToken(std::move(token));
  return Status::Ok();
}

void Credentials::KeepToken(std::string token) {
  if (token == token_) return;
  token_ = std::move(token);
  token_since_ = clock_.Now();
}

Result<std::shared_ptr<const TlsMaterial>> Credentials::LoadTls() const {
  TlsMaterial out;
  KVF_ASSIGN_OR_RETURN(out.ca, TextOr(config_.ca_pem, config_.ca_file));
  KVF_ASSIGN_OR_RETURN(out.certificate, TextOr(config_.certificate_pem, config_.certificate_file));
  KVF_ASSIGN_OR_RETURN(out.key, TextOr(config_.key_pem, config_.key_file));
  if (!out.ca.empty() || !config_.ca_file.empty()) {
    KVF_RETURN_IF_ERROR(CheckCertificates(out.ca).WithContext("certificate-authority"));
  }
  const bool wanted = !out.certificate.empty() || !out.key.empty() ||
                      !config_.certificate_file.empty() || !config_.key_file.empty();
  if (wanted) {
    KVF_RETURN_IF_ERROR(CheckKeyPair(out.certificate, out.key).WithContext("client-certificate"));
  }
  return std::shared_ptr<const TlsMaterial>(std::make_shared<TlsMaterial>(std::move(out)));
}

// Files are read without the lock; two threads that do so at once read the same.
void Credentials::ReadToken() {
  const Result<std::string> text = ReadFile(config_.token_file);
  Result<std::string> token = text.ok() ? TokenOfText(*text) : text.status();
  if (!token.ok()) {
    LogWarn("the token file cannot be used, the old token stays",
            {{"file", config_.token_file.string()}, {"reason", token.status().message()}});
  }
  MutexLock lock(mu_);
  token_due_ = clock_.Now() + options_.token_period;
  if (token.ok()) KeepToken(std::move(token).value());
}

void Credentials::ReadTls() {
  Result<std::shared_ptr<const TlsMaterial>> tls = LoadTls();
  if (!tls.ok()) {
    LogWarn("certificate files cannot be used, the old ones stay",
            {{"reason", tls.status().message()}});
  }
  MutexLock lock(mu_);
  tls_due_ = clock_.Now() + options_.file_period;
  if (!tls.ok()) return;
  const bool same = (*tls)->ca == tls_->ca && (*tls)->certificate == tls_->certificate &&
                    (*tls)->key == tls_->key;
  if (!same) tls_ = std::move(tls).value();
}

Result<Proof> Credentials::Get() {
  bool token_due = false;
  bool tls_due = false;
  {
    MutexLock lock(mu_);
    token_due = !config_.token_file.empty() && clock_.Now() >= token_due_;
    tls_due = HasTlsFiles(config_) && clock_.Now() >= tls_due_;
  }
  if (token_due) ReadToken();
  if (tls_due) ReadTls();
  Proof out;
  if (plugin_ != nullptr) {
    KVF_ASSIGN_OR_RETURN(out.exec, plugin_->Get());
  }
  MutexLock lock(mu_);
  if (out.exec.has_value() && !out.exec->token.empty()) KeepToken(out.exec->token);
  if (!token_.empty()) out.authorization = "Bearer " + token_;
  out.tls = tls_;
  if (out.exec.has_value() && !out.exec->certificate.empty()) {
    out.tls =
        std::make_shared<TlsMaterial>(TlsMaterial{tls_->ca, out.exec->certificate, out.exec->key});
  }
  return out;
}

bool Credentials::Reject(const Proof& proof) {
  if (plugin_ != nullptr && proof.exec.has_value()) {
    plugin_->Reject(*proof.exec);
    return true;
  }
  if (config_.token_file.empty()) return false;
  MutexLock lock(mu_);
  token_due_ = clock_.Now();
  return true;
}

std::optional<std::chrono::seconds> Credentials::TokenAge() const {
  MutexLock lock(mu_);
  if (token_.empty()) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - token_since_);
}

void Credentials::Stop() {
  if (plugin_ != nullptr) plugin_->Stop();
}

}  // namespace kvfabric::kube
