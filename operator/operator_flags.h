#pragma once

// The command line of kvfabric-operator. Pure.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/status.h"

namespace kvfabric {

struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0 = any
};

// Of a local fabric when state_dir is set, else of a cluster.
struct OperatorFlags {
  std::filesystem::path state_dir;
  std::filesystem::path kubeconfig;  // of the cluster; empty: the pod's own credentials
  bool in_cluster = false;
  // KUBERNETES_SERVICE_HOST and _PORT, which main reads; empty outside of a pod.
  std::string service_host;
  std::string service_port;
  std::string ns = "kvfabric-system";  // of the Lease and of the agents' pods in a cluster
  std::filesystem::path tls_dir;       // in a cluster: the fabric's CA
  std::filesystem::path tokens;        // default STATE_DIR/tokens
  Endpoint listen;                     // the embedded API; loopback only
  Endpoint metrics;                    // /metrics /livez /readyz
  LogLevel log_level = LogLevel::kInfo;
  bool help = false;
  bool version = false;
};

std::string_view OperatorHelp();
// Every fault at once.
Result<OperatorFlags> ParseOperatorFlags(const std::vector<std::string>& arguments);

}  // namespace kvfabric
