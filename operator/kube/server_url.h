#pragma once

// The address of an API server in its parts. Pure.

#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric::kube {

struct ServerUrl {
  std::string scheme;  // https, or http on loopback
  std::string host;    // [::1] in brackets
  std::string port;
  std::string origin;  // https://host:port
  std::string prefix;  // "" or /k8s/clusters/c-1: before every path
  bool loopback = false;
};

// INVALID_ARGUMENT for anything but https://HOST[:PORT][/PREFIX]; http for loopback hosts only.
Result<ServerUrl> ParseServerUrl(std::string_view text);

}  // namespace kvfabric::kube
