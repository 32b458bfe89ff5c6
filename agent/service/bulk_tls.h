#pragma once

// BulkTls: how the bulk connections of an agent are encrypted. The context follows the agent's
// certificate: connections keep the one they began with, new ones take the present one.
//
// Owned by main; any thread.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/certificate.h"
#include "common/log.h"
#include "common/mutex.h"
#include "transport/tls_stream.h"

namespace kvfabric {

class BulkTls {
 public:
  // `clear`: may the blocks of this pool travel unencrypted?
  BulkTls(TlsSource source, std::function<bool(const std::string& pool_uid)> clear)
      : source_(std::move(source)), clear_(std::move(clear)) {}
  BulkTls(const BulkTls&) = delete;  // connections point to it
  BulkTls& operator=(const BulkTls&) = delete;

  bool MayTravelInClear(const std::string& pool_uid) const { return clear_(pool_uid); }

  // Null when what the source gives cannot be used: then nothing is connected or accepted.
  std::shared_ptr<const TlsContext> Context() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::shared_ptr<const TlsMaterial> now = source_();
    if (now == material_) return context_;
    auto made = TlsContext::Create({.certificate_pem = now->own.certificate_pem,
                                    .private_key_pem = now->own.key_pem,
                                    .trusted_pem = now->trusted_pem});
    if (!made.ok()) LogError("bulk TLS not usable", {{"reason", made.status().message()}});
    context_ = made.ok() ? std::move(*made) : nullptr;
    material_ = std::move(now);
    return context_;
  }

 private:
  const TlsSource source_;
  const std::function<bool(const std::string&)> clear_;
  Mutex mu_;
  std::shared_ptr<const TlsMaterial> material_ GUARDED_BY(mu_);  // of context_
  std::shared_ptr<const TlsContext> context_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
