#pragma once

// The Kubernetes objects that stand for one local agent: a Node and the agent's Pod on it, in the
// shape that membership reads in a cluster. Also the small read-modify-write steps that kvctl does
// on objects. Functions; any thread.

#include <functional>
#include <string>

#include "cli/fabric_directory.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {

std::string NodeJson(const FabricNode& node);
std::string PodJson(const FabricNode& node);
kube::ObjectName PodNameOf(const std::string& node);

// Creates the object, or replaces everything but what the API owns; then its status where the kind
// has one. Tries again when somebody else wrote in between.
Status ApplyObject(kube::KubeClient& api, kube::Kind kind, const std::string& json);
// Sets the annotation; an empty value removes it.
Status SetAnnotation(kube::KubeClient& api, kube::Kind kind, const kube::ObjectName& name,
                     const std::string& key, const std::string& value);

}  // namespace kvfabric::cli
