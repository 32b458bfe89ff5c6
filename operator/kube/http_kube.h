#pragma once

// HttpKube: the KubeApi of a real API server, or of an embedded one in another process, over HTTPS.
//
// Owned by main; any thread may call. Calls block at most for their timeout, tries included; the
// destructor and Stop end them at once (CANCELLED). Streams may outlive it and then end as broken.
//
// What is tried again by itself: 429 and 5xx with a Retry-After (it waits that long), a 401 (once,
// with fresh credentials), and a broken connection where doing it twice is harmless (GET, LIST, PUT
// with a resourceVersion, apply, guarded DELETE). A POST whose answer was lost is UNAVAILABLE: the
// caller finds out by AlreadyExists whether it was done. What a watch suffers is its caller's.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/metrics.h"
#include "operator/kube/credentials.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/kubeconfig.h"

namespace kvfabric::kube {

class ApiSession;

class HttpKube final : public KubeApi {
 public:
  struct Options {
    ApiTarget target;
    std::string user_agent = "kvfabric";
    MetricsRegistry* metrics = nullptr;     // borrowed; null: not counted
    const Clock* clock = &Clock::System();  // of credentials

    std::chrono::milliseconds connect_timeout{5000};  // TCP, proxy and TLS
    std::chrono::milliseconds call_timeout{30'000};
    std::chrono::milliseconds list_timeout{300'000};  // of all pages together
    // Of a Lease: half of the elector's renew deadline.
    std::chrono::milliseconds lease_timeout{2500};
    // A watch or list without a byte for so long is given up; the API sends a bookmark a minute.
    std::chrono::milliseconds silence{100'000};
    std::chrono::seconds watch_timeout_min{300};  // asked of the server, at random in between
    std::chrono::seconds watch_timeout_max{600};
    std::size_t page_items = 500;
    std::size_t buffer_bytes = std::size_t{4} << 20U;  // of a stream nobody polls; then it pauses
    std::size_t max_body_bytes = std::size_t{64} << 20U;
    std::size_t max_calls = 32;  // at once, Leases apart; others wait
    int max_tries = 10;
    std::chrono::milliseconds retry_after_unit{1000};  // what a server means by a second
    Credentials::Options credentials{};
    std::uint64_t seed = 1;
  };

  // INVALID_ARGUMENT and the like when the target cannot be right; nothing is sent.
  static Result<std::unique_ptr<HttpKube>> Create(Options options);
  ~HttpKube() override;
  HttpKube(const HttpKube&) = delete;  // owns connections
  HttpKube& operator=(const HttpKube&) = delete;

  Result<ObjectList> List(Kind kind, const std::string& ns) override;
  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override;
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override;
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override;
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override;
  Result<ObjectPtr> Apply(Kind kind, const std::string& json, const ApplyOptions& options) override;
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override;
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override;
  Result<std::unique_ptr<ListStream>> StartList(Kind kind, const Scope& scope,
                                                std::optional<std::uint64_t> not_older_than,
                                                std::function<void()> on_ready) override;
  Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const Scope& scope, const WatchFrom& from,
                                             std::function<void()> on_ready) override;

  // Is it there, and does it take our credentials? One GET of /version.
  Status Ping();
  // Ends all calls and streams; later ones fail.
  void Stop();

 private:
  explicit HttpKube(std::shared_ptr<ApiSession> session);
  Result<ObjectPtr> Write(bool create, Kind kind, const std::string& json, bool status);

  const std::shared_ptr<ApiSession> session_;
};

}  // namespace kvfabric::kube
