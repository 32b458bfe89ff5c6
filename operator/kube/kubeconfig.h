#pragma once

// Where an API server is and how to prove oneself to it: from kubeconfig files, or from what a pod
// finds mounted. Every text people wrote is checked here, so that a wrong one is said at start.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "operator/kube/credentials.h"

namespace kvfabric::kube {

struct ApiTarget {
  std::string server;  // https://host:port/prefix
  std::string tls_server_name;
  bool insecure = false;
  std::string proxy;
  std::string ns = "default";
  CredentialConfig credentials;
};

// One file of a kubeconfig: its text, and the directory that relative paths in it start from.
struct KubeconfigText {
  std::filesystem::path path;  // for errors; its directory is where relative paths start
  std::string text;
};

// Pure. The first file that says something wins: the current context, and each named cluster, user
// and context as a whole. `context` = "": the current one. INVALID_ARGUMENT names file and field
// and says what to write; never a secret.
Result<ApiTarget> ParseKubeconfig(const std::vector<KubeconfigText>& files,
                                  const std::string& context = "");

// The files of $KUBECONFIG (a list with colons), or HOME/.kube/config.
std::vector<std::filesystem::path> KubeconfigFiles(const std::string& kubeconfig,
                                                   const std::string& home);
// Reads and parses. Of several files those that do not exist are left out; NOT_FOUND when none is
// there.
Result<ApiTarget> LoadKubeconfig(const std::vector<std::filesystem::path>& files,
                                 const std::string& context = "");

// What a pod is given. `host`, `port`: KUBERNETES_SERVICE_HOST and _PORT; FAILED_PRECONDITION when
// they are empty: this is no pod.
struct InClusterSource {
  std::string host;
  std::string port;
  std::filesystem::path mount = "/var/run/secrets/kubernetes.io/serviceaccount";
};
Result<ApiTarget> InClusterTarget(const InClusterSource& source);

}  // namespace kvfabric::kube
