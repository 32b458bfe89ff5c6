#pragma once

// A CA for tests and what it signs, in force now unless said otherwise. Link
// kvfabric::certificates.

#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "common/certificate.h"
#include "common/check.h"

namespace kvfabric {

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test CA") {
    auto made = MakeAuthority(name, {std::time(nullptr) - 7'200, std::time(nullptr) + 86'400});
    KVF_CHECK(made.ok(), "cannot make a CA");
    pair_ = std::move(*made);
  }

  const CertifiedKey& pair() const { return pair_; }
  const std::string& trusted() const { return pair_.certificate_pem; }

  CertifiedKey Issue(const CertificateIdentity& identity, std::int64_t ends_in_s = 3'600) const {
    const std::int64_t now = std::time(nullptr);
    auto made = IssueCertificate(
        pair_, {identity, {"localhost"}, {"127.0.0.1"}, {now - 3'600, now + ends_in_s}});
    KVF_CHECK(made.ok(), "cannot issue");
    return *made;
  }
  std::shared_ptr<const TlsMaterial> Material(const CertificateIdentity& identity,
                                              std::int64_t ends_in_s = 3'600) const {
    return std::make_shared<const TlsMaterial>(TlsMaterial{Issue(identity, ends_in_s), trusted()});
  }

 private:
  CertifiedKey pair_;
};

}  // namespace kvfabric
