#include "operator/controllers/certificates.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/log.h"

namespace kvfabric {

namespace {

using Json = nlohmann::json;

constexpr char kAuthorityName[] = "kvfabric CA";
// Clocks of nodes differ: what is signed now was in force a little ago already. Less for lives so
// short that this would be most of them.
constexpr std::int64_t kClockSkewSeconds = 300;
std::int64_t SkewFor(std::chrono::seconds lifetime) {
  return std::min<std::int64_t>(kClockSkewSeconds, lifetime.count() / 10);
}

bool Due(const CertificateValidity& validity, std::int64_t now) {
  return now >= validity.not_before_s + (validity.not_after_s - validity.not_before_s) * 2 / 3;
}

}  // namespace

Certificates::Certificates(const Options& options, Environment environment)
    : options_(options),
      environment_(std::move(environment)),
      authority_expires_(
          environment_.metrics->GetGauge("kvfabric_operator_authority_expires_timestamp_seconds",
                                         "Unix time at which the CA that signs now ends")),
      own_expires_(
          environment_.metrics->GetGauge("kvfabric_operator_certificate_expires_timestamp_seconds",
                                         "Unix time at which the operator's own certificate ends")),
      signed_(environment_.metrics->GetCounter("kvfabric_operator_certificates_signed_total",
                                               "Certificates signed for agents")),
      refused_(environment_.metrics->GetCounter("kvfabric_operator_certificates_refused_total",
                                                "Requests of agents that were refused")) {}

Result<std::unique_ptr<Certificates>> Certificates::Open(const Options& options,
                                                         Environment environment) {
  std::unique_ptr<Certificates> out(new Certificates(options, std::move(environment)));
  KVF_ASSIGN_OR_RETURN(const std::optional<std::string> stored, out->environment_.store->Load());
  if (stored) {
    KVF_RETURN_IF_ERROR(out->Decode(*stored));
    KVF_RETURN_IF_ERROR(out->Refresh());
    return out;
  }
  KVF_ASSIGN_OR_RETURN(Authority first, out->NewAuthority());
  KVF_RETURN_IF_ERROR(out->Adopt({std::move(first)}, 0));
  LogInfo("made a CA", {{"fingerprint", out->fingerprint_}});
  return out;
}

CertificateValidity Certificates::ValidityFor(std::chrono::seconds lifetime) const {
  return {Now() - SkewFor(lifetime), Now() + lifetime.count()};
}

Result<Certificates::Authority> Certificates::NewAuthority() const {
  Authority made;
  made.validity = ValidityFor(options_.authority_lifetime);
  KVF_ASSIGN_OR_RETURN(made.pair, MakeAuthority(kAuthorityName, made.validity));
  return made;
}

std::string Certificates::Bundle() const {
  std::string bundle;
  for (const Authority& authority : authorities_) bundle += authority.pair.certificate_pem;
  return bundle;
}

std::string Certificates::Encode() const {
  Json list = Json::array();
  for (const Authority& authority : authorities_) {
    list.push_back({{"certificate", authority.pair.certificate_pem},
                    {"key", authority.pair.key_pem},
                    {"lastSignedUntil", authority.last_signed_until_s}});
  }
  return Json{{"authorities", list}, {"signing", signing_}}.dump() + "\n";
}

Status Certificates::Decode(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  std::vector<Authority> read;
  try {
    for (const Json& one : json.at("authorities")) {
      Authority authority;
      authority.pair = {one.at("certificate").get<std::string>(), one.at("key").get<std::string>()};
      authority.last_signed_until_s = one.at("lastSignedUntil").get<std::int64_t>();
      KVF_RETURN_IF_ERROR(CheckKeyMatches(authority.pair).WithContext("stored CA"));
      KVF_ASSIGN_OR_RETURN(const CertificateFacts facts,
                           ReadCertificate(authority.pair.certificate_pem));
      authority.validity = facts.validity;
      read.push_back(std::move(authority));
    }
    signing_ = json.at("signing").get<std::size_t>();
  } catch (const Json::exception&) {
    return DataLoss(
        "stored CA: not what the operator wrote: restore it, or remove it and restart "
        "operator and agents (every certificate is made anew)");
  }
  if (read.empty() || signing_ >= read.size()) return DataLoss("stored CA: names no CA that signs");
  authorities_ = std::move(read);
  return Status::Ok();
}

Status Certificates::Adopt(std::vector<Authority> authorities, std::size_t signing) {
  std::swap(authorities_, authorities);
  std::swap(signing_, signing);
  if (const Status saved = environment_.store->Save(Encode()); !saved.ok()) {
    std::swap(authorities_, authorities);
    std::swap(signing_, signing);
    return saved.WithContext("CA not stored");
  }
  return Refresh();
}

Status Certificates::Refresh() {
  stale_ = true;  // until all of it is in place
  const Authority& by = authorities_[signing_];
  const CertificateValidity brief = ValidityFor(options_.lifetime);
  // Bootstrap lasts as long as its CA: an agent may start with it at any time.
  const CertificateValidity whole = by.validity;
  using Role = CertificateIdentity::Role;
  PublishedCertificates published;
  published.trusted_pem = Bundle();
  TlsMaterial own{{}, published.trusted_pem};
  KVF_ASSIGN_OR_RETURN(own.own, IssueCertificate(by.pair, {{Role::kOperator, ""}, {}, {}, brief}));
  KVF_ASSIGN_OR_RETURN(published.admin,
                       IssueCertificate(by.pair, {{Role::kAdmin, ""}, {}, {}, brief}));
  KVF_ASSIGN_OR_RETURN(published.bootstrap,
                       IssueCertificate(by.pair, {{Role::kBootstrap, ""}, {}, {}, whole}));
  KVF_RETURN_IF_ERROR(environment_.publish(published).WithContext("certificates not published"));
  KVF_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(own.own.certificate_pem));
  own_validity_ = facts.validity;
  fingerprint_ = TrustFingerprint(published.trusted_pem);
  authority_expires_.Set(static_cast<double>(by.validity.not_after_s));
  own_expires_.Set(static_cast<double>(own_validity_.not_after_s));
  stale_ = false;
  MutexLock lock(mu_);
  own_ = std::make_shared<const TlsMaterial>(std::move(own));
  return Status::Ok();
}

std::shared_ptr<const TlsMaterial> Certificates::own() const {
  MutexLock lock(mu_);
  return own_;
}

Result<std::string> Certificates::Sign(const std::string& request_pem, const std::string& node_name,
                                       const std::string& address) {
  CertificateOrder order;
  order.identity = CertificateIdentity::Agent(node_name);
  order.dns_names = {"kvfabric-agent", "kvfabric-agent-local", "localhost"};
  order.addresses = {address};
  order.validity = ValidityFor(options_.lifetime);
  Result<std::string> made = SignCertificate(authorities_[signing_].pair, request_pem, order);
  (made.ok() ? signed_ : refused_).Add();
  if (!made.ok()) return made.status().WithContext("certificate for node " + node_name);
  return made;
}

Status Certificates::BeginRotation() {
  if (rotating()) return Status::Ok();
  KVF_ASSIGN_OR_RETURN(Authority next, NewAuthority());
  std::vector<Authority> both = authorities_;
  both.push_back(std::move(next));
  KVF_RETURN_IF_ERROR(Adopt(std::move(both), 0));
  LogInfo("CA rotation begins: agents get the new CA", {{"fingerprint", fingerprint_}});
  return Status::Ok();
}

Status Certificates::Step(bool all_trust) {
  const std::int64_t now = Now();
  if (stale_) return Refresh();
  if (!rotating()) {
    if (Due(authorities_[0].validity, now)) return BeginRotation();
  } else if (signing_ == 0) {
    // An agent that is away for so long reads the bundle when it starts.
    const CertificateValidity& old = authorities_[0].validity;
    const bool late = now >= old.not_before_s + (old.not_after_s - old.not_before_s) * 5 / 6;
    if (all_trust || late) {
      std::vector<Authority> both = authorities_;
      both[0].last_signed_until_s = now + options_.lifetime.count() + SkewFor(options_.lifetime);
      KVF_RETURN_IF_ERROR(Adopt(std::move(both), 1));
      LogInfo("CA rotation: the new CA signs", {{"all_agents_trust_it", all_trust}});
      return Status::Ok();
    }
  } else if (now >= authorities_[0].last_signed_until_s) {
    KVF_RETURN_IF_ERROR(Adopt({authorities_[1]}, 0));
    LogInfo("CA rotation ends: the old CA is gone", {{"fingerprint", fingerprint_}});
    return Status::Ok();
  }
  return Due(own_validity_, now) ? Refresh() : Status::Ok();
}

}  // namespace kvfabric
