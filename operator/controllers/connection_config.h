#pragma once

// ConnectionConfig: the ConfigMap `<pool>-kvfabric` beside a pool, from which engines that are
// wired by hand take what they must know: endpoints, the pool, and what of their fingerprint the
// pool fixes. Owned by the pool, so it goes with it.
//
// One per pool, on the control loop's thread. Written when its content is another, made again when
// somebody deleted it; looked at when the wanted content changes and else every `check`.

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "operator/kube/kube_api.h"
#include "operator/specs/pool_spec.h"
#include "placement/shard_map.h"

namespace kvfabric {

class ConnectionConfig {
 public:
  struct Options {
    // Local mode: the agents' own addresses, for want of Services and of one socket path.
    bool from_members = false;
    std::chrono::milliseconds check{30'000};
  };

  explicit ConnectionConfig(Options options) : options_(options) {}

  // `map` may be null. An ALREADY_EXISTS: a ConfigMap of that name is not ours; it is left alone.
  Status Keep(const Pool& pool, const ShardMap* map, kube::KubeClient& api, Clock::TimePoint now);

  static std::map<std::string, std::string> DataFor(const Pool& pool, const ShardMap* map,
                                                    bool from_members);

 private:
  Status Write(const Pool& pool, const std::map<std::string, std::string>& data,
               kube::KubeClient& api) const;

  const Options options_;
  std::map<std::string, std::string> kept_;
  std::optional<Clock::TimePoint> checked_;
};

}  // namespace kvfabric
