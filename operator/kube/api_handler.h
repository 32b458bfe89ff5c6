#pragma once

// ApiHandler answers requests of the Kubernetes API out of an EmbeddedKubeApi: who may ask,
// discovery, reads, writes, patches, apply. Watches it only reads and hands on: they need a
// connection of their own. Any thread; borrows the API and the options.

#include <cstdint>
#include <optional>
#include <string>

#include "operator/kube/api_request.h"
#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"

namespace kvfabric::kube {

struct ApiAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::optional<std::uint64_t> retry_after_s;
  std::optional<WatchParameters> watch;  // instead of a body
};

class ApiHandler {
 public:
  ApiHandler(EmbeddedKubeApi& api, const EmbeddedApiServer::Options& options)
      : api_(api), options_(options) {}

  ApiAnswer Serve(const ApiRequest& request) const;
  static ApiAnswer Failure(const Status& status);

 private:
  Result<ApiAnswer> Authenticated(const ApiRequest& request) const;
  Result<ApiAnswer> Collection(const ApiPath& path, const ApiRequest& request) const;
  Result<ApiAnswer> Item(const ApiPath& path, const ApiRequest& request) const;
  Result<ApiAnswer> List(const ApiPath& path, const ApiRequest& request) const;
  Result<ApiAnswer> Patch(const ApiPath& path, const ApiRequest& request) const;
  Result<ApiAnswer> Apply(const ApiPath& path, const ApiRequest& request) const;
  Result<ApiAnswer> Delete(const ApiPath& path, const ApiRequest& request) const;
  // One object in the form that was asked for.
  Result<ApiAnswer> Answer(const ApiRequest& request, const Result<ObjectPtr>& object) const;

  EmbeddedKubeApi& api_;
  const EmbeddedApiServer::Options& options_;
};

}  // namespace kvfabric::kube
