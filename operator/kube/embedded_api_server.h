#pragma once

// EmbeddedApiServer serves a KubeClient as Kubernetes JSON over HTTPS on loopback, so that kvctl
// and kubectl work on a local fabric as on a cluster: discovery, get, list, create, update, status
// update, delete. Watch and patch come with part 2 and are refused as such.
//
// Owned by main. Runs its own bounded threads; the destructor stops them. The bearer token of
// `admin` is asked for on every path but /livez and /readyz: none or an unknown one is 401, the
// token of a tenant 403.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/token_file.h"

namespace kvfabric::kube {

class EmbeddedApiServer {
 public:
  struct Options {
    std::uint16_t port = 0;  // 0 = any; 127.0.0.1 only
    Tokens tokens;           // must hold `admin`
    std::string version = "v0.1.0";
    // Objects as kubectl's table; null = it prints names only. Called on the server's threads.
    std::function<std::string(Kind, const ObjectList&)> table;
  };

  // UNAVAILABLE: the port is in use; says which.
  static Result<std::unique_ptr<EmbeddedApiServer>> Start(KubeClient& api, Options options);
  ~EmbeddedApiServer();
  EmbeddedApiServer(const EmbeddedApiServer&) = delete;  // owns a socket and threads
  EmbeddedApiServer& operator=(const EmbeddedApiServer&) = delete;

  std::uint16_t port() const;
  // What kubectl and RemoteKube read: address, certificate, admin token. Keep it at mode 0600.
  std::string Kubeconfig() const;

 private:
  struct State;
  explicit EmbeddedApiServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvfabric::kube
