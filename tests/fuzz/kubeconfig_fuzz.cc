// Kubeconfigs, answers of credential plugins and token files, as whoever writes them leaves them.
// Nothing may crash or hang; what is taken must be usable.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "operator/kube/exec_plugin.h"
#include "operator/kube/kubeconfig.h"
#include "operator/kube/pem.h"
#include "operator/kube/server_url.h"

namespace {

using kvfabric::kube::CredentialConfig;
using kvfabric::kube::DecodeBase64;
using kvfabric::kube::EncodeBase64;
using kvfabric::kube::ParseExecCredential;
using kvfabric::kube::ParseKubeconfig;
using kvfabric::kube::ParseServerUrl;
using kvfabric::kube::TokenOfText;

void Demand(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto target = ParseKubeconfig({{"/a/config", text}});
  if (target.ok()) {
    Demand(ParseServerUrl(target->server).ok());
    const CredentialConfig& credentials = target->credentials;
    Demand(credentials.token_file.empty() || credentials.token_file.is_absolute());
    Demand(!credentials.exec.has_value() || !credentials.exec->command.empty());
    // First wins: the same file twice says the same.
    const auto again = ParseKubeconfig({{"/a/config", text}, {"/b/config", text}});
    Demand(again.ok() && again->server == target->server &&
           again->credentials.token == credentials.token);
  }
  const auto credential = ParseExecCredential("client.authentication.k8s.io/v1", text);
  if (credential.ok()) Demand(!credential->token.empty() || !credential->certificate.empty());
  const auto token = TokenOfText(text);
  if (token.ok()) Demand(token->find_first_of("\r\n ") == std::string::npos);
  const auto decoded = DecodeBase64(text);
  if (decoded.ok()) Demand(DecodeBase64(EncodeBase64(*decoded)).ok());
  return 0;
}
