#pragma once

// Paths of the Kubernetes API: `/api/v1/nodes/n1`,
// `/apis/kvfabric.io/v1alpha1/namespaces/default/kvcachepools/main/status`. Pure.

#include <optional>
#include <string>
#include <string_view>

#include "operator/kube/object.h"

namespace kvfabric::kube {

struct ApiPath {
  Kind kind = Kind::kNode;
  std::string ns;    // "" = all namespaces, or cluster-scoped
  std::string name;  // "" = the collection
  bool status = false;
};

// Nullopt: not a resource we serve.
std::optional<ApiPath> ParseApiPath(std::string_view path);
std::string FormatApiPath(const ApiPath& path);

}  // namespace kvfabric::kube
