#pragma once

// OperatorRuntime: what every operator process runs over its KubeApi: leadership, the control
// loop, agent streams, /metrics, /livez and /readyz. LocalOperator gives it the embedded API.
//
// Owned by the operator object; the API outlives it. Starts threads of its own: elections (alone,
// so that nothing delays a renewal), a watchdog that ends the process when a leader hangs past its
// time, the loop, and the HTTP server's. The destructor stops them in reverse order and releases
// the Lease last, so that nothing writes after it.

#include <cstdint>
#include <memory>
#include <string>

#include "common/metrics.h"
#include "common/status.h"
#include "operator/kube/kube_api.h"
#include "operator/operator_flags.h"

namespace kvfabric {

class Certificates;

class OperatorRuntime {
 public:
  struct Options {
    Endpoint metrics_listen;
    std::string admin_token;  // of the agents' Control service
    std::string agent_namespace;
    Certificates* certificates = nullptr;  // borrowed; null: agents are spoken to in clear
    // The Lease's holder cannot be alive (a lock proves it): lead at once.
    bool previous_holder_is_gone = false;
    // Engines find agents by the cluster's Services; else by the members' addresses.
    bool has_services = true;
  };

  // `elections`: the same API over a connection of its own, where there is one to speak of.
  static Result<std::unique_ptr<OperatorRuntime>> Start(kube::KubeApi& api,
                                                        kube::KubeClient& elections,
                                                        MetricsRegistry& metrics, Options options);
  ~OperatorRuntime();
  OperatorRuntime(const OperatorRuntime&) = delete;  // owns threads
  OperatorRuntime& operator=(const OperatorRuntime&) = delete;

  std::uint16_t http_port() const;
  const std::string& identity() const;

 private:
  struct Parts;
  explicit OperatorRuntime(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvfabric
