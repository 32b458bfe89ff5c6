#pragma once

// EmbeddedApiServer serves an EmbeddedKubeApi as Kubernetes JSON over HTTPS on loopback, so that
// kubectl, kvctl and our own client work on a local fabric as on a cluster: discovery and OpenAPI
// v3, get, list, watch, create, update, patch (merge, JSON, strategic for built-in kinds), apply,
// delete; status apart; dry run; tables. Not served, and refused by name: deletion of collections,
// metadata-only answers, paging.
//
// Owned by main. Runs its own bounded threads; watches have threads of their own, at most
// `max_watches`, beyond which a client is told to come back; one that does not read is cut, one
// that reads too slowly gets 410. The destructor ends watches in good order and stops the threads.
// The bearer token of `admin` is asked for on every path but /livez and /readyz: none or an unknown
// one is 401, the token of a tenant 403.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/openapi_doc.h"
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
    // Fields of our kinds, for kubectl explain; null = none are described. As `table`.
    SchemaText schema;
    std::size_t max_watches = 64;
    std::chrono::milliseconds bookmark_every{60'000};
    // A client that neither sends nor takes a byte for so long is cut, watching or not.
    std::chrono::milliseconds client_timeout{5'000};
  };

  // UNAVAILABLE: the port is in use; says which.
  static Result<std::unique_ptr<EmbeddedApiServer>> Start(EmbeddedKubeApi& api, Options options);
  ~EmbeddedApiServer();
  EmbeddedApiServer(const EmbeddedApiServer&) = delete;  // owns a socket and threads
  EmbeddedApiServer& operator=(const EmbeddedApiServer&) = delete;

  std::uint16_t port() const;
  // What kubectl and HttpKube read: address, certificate, admin token. Keep it at mode 0600.
  std::string Kubeconfig() const;

 private:
  struct State;
  explicit EmbeddedApiServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvfabric::kube
