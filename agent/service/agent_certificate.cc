#include "agent/service/agent_certificate.h"

#include <sys/stat.h>

#include <utility>

#include "agent/cluster/durable_file.h"
#include "common/log.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;
constexpr char kOwnFile[] = "agent.pem";

Result<std::string> ReadPart(const std::filesystem::path& path) {
  KVF_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadWholeFile(path, kMaxFileBytes));
  if (!text) {
    return FailedPrecondition(path.string() +
                              ": no such file: give tls.bootstrapDir the directory of the "
                              "bootstrap bundle (ca.crt, tls.crt, tls.key)");
  }
  return *text;
}

bool Same(const TlsMaterial& a, const TlsMaterial& b) {
  return a.own.certificate_pem == b.own.certificate_pem && a.own.key_pem == b.own.key_pem &&
         a.trusted_pem == b.trusted_pem;
}

}  // namespace

AgentCertificate::AgentCertificate(Options options, const Environment& environment)
    : options_(std::move(options)),
      clock_(*environment.clock),
      expires_(environment.metrics->GetGauge("kvfabric_agent_certificate_expires_timestamp_seconds",
                                             "Unix time at which the certificate in use ends")),
      own_gauge_(environment.metrics->GetGauge(
          "kvfabric_agent_certificate_own",
          "1 while the agent has a certificate of its own; without one it serves no peers")),
      renewals_(environment.metrics->GetCounter("kvfabric_agent_certificate_renewals_total",
                                                "Certificates taken from the operator")) {}

Result<std::unique_ptr<AgentCertificate>> AgentCertificate::Open(Options options,
                                                                 const Environment& environment) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error || ::chmod(options.directory.c_str(), 0700) != 0) {
    return FailedPrecondition(options.directory.string() + ": make directory: " +
                              (error ? error.message() : std::string("chmod failed")));
  }
  std::unique_ptr<AgentCertificate> out(new AgentCertificate(std::move(options), environment));
  KVF_ASSIGN_OR_RETURN(TlsMaterial bootstrap, out->ReadBootstrap());
  MutexLock lock(out->mu_);
  out->bootstrap_ = bootstrap;
  out->Use(std::move(bootstrap), false);
  out->ReadOwn();
  return out;
}

Result<TlsMaterial> AgentCertificate::ReadBootstrap() const {
  TlsMaterial read;
  KVF_ASSIGN_OR_RETURN(read.trusted_pem, ReadPart(options_.bootstrap / "ca.crt"));
  KVF_ASSIGN_OR_RETURN(read.own.certificate_pem, ReadPart(options_.bootstrap / "tls.crt"));
  KVF_ASSIGN_OR_RETURN(read.own.key_pem, ReadPart(options_.bootstrap / "tls.key"));
  const std::string where = options_.bootstrap.string();
  KVF_RETURN_IF_ERROR(ReadTrustBundle(read.trusted_pem).status().WithContext(where + "/ca.crt"));
  KVF_RETURN_IF_ERROR(CheckKeyMatches(read.own).WithContext(where + "/tls.{crt,key}"));
  return read;
}

Status AgentCertificate::Judge(const CertifiedKey& own, const std::string& trusted_pem) const {
  KVF_RETURN_IF_ERROR(CheckKeyMatches(own));
  KVF_RETURN_IF_ERROR(ReadTrustBundle(trusted_pem).status());
  const CertificateVerdict verdict = VerifyCertificate(own.certificate_pem, trusted_pem, Now());
  if (verdict.fault != CertificateFault::kNone) return InvalidArgument(verdict.reason);
  if (verdict.identity != CertificateIdentity::Agent(options_.node_name)) {
    return InvalidArgument("certificate: is " + verdict.identity.ToString() + "'s, this is node " +
                           options_.node_name);
  }
  return Status::Ok();
}

void AgentCertificate::Use(TlsMaterial material, bool own) {
  const auto facts = ReadCertificate(material.own.certificate_pem);
  validity_ = facts.ok() ? facts->validity : CertificateValidity{};
  trusted_ = TrustFingerprint(material.trusted_pem);
  material_ = std::make_shared<const TlsMaterial>(std::move(material));
  own_.store(own, std::memory_order_release);
  expires_.Set(static_cast<double>(validity_.not_after_s));
  own_gauge_.Set(own ? 1 : 0);
}

void AgentCertificate::ReadOwn() {
  const auto text = ReadWholeFile(options_.directory / kOwnFile, kMaxFileBytes);
  if (!text.ok() || !text->has_value()) return;
  // One file, key first, so that both change together.
  const std::size_t cut = (*text)->find("-----BEGIN CERTIFICATE-----");
  if (cut == std::string::npos) return;
  TlsMaterial read{{(*text)->substr(cut), (*text)->substr(0, cut)}, bootstrap_->trusted_pem};
  if (const Status why = Judge(read.own, read.trusted_pem); !why.ok()) {
    LogInfo("own certificate put aside", {{"reason", why.message()}});
    return;
  }
  Use(std::move(read), true);
}

std::shared_ptr<const TlsMaterial> AgentCertificate::material() const {
  MutexLock lock(mu_);
  return material_;
}

AgentCertificate::Report AgentCertificate::report() const {
  MutexLock lock(mu_);
  return {own(), validity_.not_after_s, trusted_};
}

std::optional<std::string> AgentCertificate::RequestIfDue() {
  MutexLock lock(mu_);
  const std::int64_t now = Now();
  const std::int64_t life = validity_.not_after_s - validity_.not_before_s;
  if (own() && now < validity_.not_before_s + life * 2 / 3) return std::nullopt;
  // The clock may have been set back.
  if (!pending_key_.empty() && now >= asked_s_ && now < asked_s_ + options_.ask_again.count()) {
    return std::nullopt;
  }
  auto key = pending_key_.empty() ? MakePrivateKey() : Result<std::string>(pending_key_);
  if (!key.ok()) return std::nullopt;
  const auto request = MakeSigningRequest(*key);
  if (!request.ok()) {
    LogError("certificate request not made", {{"reason", request.status().message()}});
    return std::nullopt;
  }
  pending_key_ = std::move(*key);
  asked_s_ = now;
  return *request;
}

Status AgentCertificate::Install(const std::string& certificate_pem,
                                 const std::string& trusted_pem) {
  MutexLock lock(mu_);
  if (pending_key_.empty()) return InvalidArgument("certificate: none was asked for");
  TlsMaterial next{{certificate_pem, pending_key_}, trusted_pem};
  KVF_RETURN_IF_ERROR(Judge(next.own, next.trusted_pem));
  const std::string text = next.own.key_pem + next.own.certificate_pem;
  // Kept for the next start only: without it that one asks again.
  const std::filesystem::path file = options_.directory / kOwnFile;
  if (const Status kept = WriteFileDurably(file, AsBytes(text)); !kept.ok()) {
    LogWarn("own certificate not kept", {{"reason", kept.message()}});
  }
  pending_key_.clear();
  Use(std::move(next), true);
  renewals_.Add();
  LogInfo("own certificate in use",
          {{"node", options_.node_name}, {"until", validity_.not_after_s}});
  return Status::Ok();
}

Status AgentCertificate::Trust(const std::string& trusted_pem) {
  MutexLock lock(mu_);
  if (own()) {
    KVF_RETURN_IF_ERROR(Judge(material_->own, trusted_pem));
  } else {
    KVF_RETURN_IF_ERROR(ReadTrustBundle(trusted_pem).status());
  }
  if (trusted_pem == material_->trusted_pem) return Status::Ok();
  Use({material_->own, trusted_pem}, own());
  LogInfo("trust bundle in use", {{"fingerprint", trusted_}});
  return Status::Ok();
}

Status AgentCertificate::Check() {
  Result<TlsMaterial> bootstrap = ReadBootstrap();
  MutexLock lock(mu_);
  if (bootstrap.ok() && !Same(*bootstrap, *bootstrap_)) {
    const bool covered = own() && Judge(material_->own, bootstrap->trusted_pem).ok();
    LogInfo("bootstrap bundle read again", {{"keeps_own_certificate", covered}});
    bootstrap_ = *bootstrap;
    if (covered) {
      Use({material_->own, bootstrap->trusted_pem}, true);
    } else {
      Use(*bootstrap, false);
    }
  }
  if (own() && Now() > validity_.not_after_s) {
    LogError("own certificate has ended: the operator did not renew it in time",
             {{"node", options_.node_name}});
    Use(*bootstrap_, false);
  }
  return bootstrap.status();
}

}  // namespace kvfabric
