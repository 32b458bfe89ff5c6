#include "operator/operator_flags.h"

#include <charconv>
#include <optional>
#include <utility>

#include "operator/kube/object.h"

namespace kvfabric {
namespace {

constexpr std::string_view kHelp =
    R"help(kvfabric-operator: keeps the pools of a fabric true.

Usage: kvfabric-operator --state-dir DIR [flags]       of a local fabric
       kvfabric-operator --in-cluster FLAGS       of a cluster, as a pod of it
       kvfabric-operator --kubeconfig FILE FLAGS  of a cluster, from outside

  --state-dir DIR          holds api/ (the pools and maps as YAML), kubeconfig and operator.json;
                           made when absent, owned by one operator at a time
  --in-cluster             uses the pod's service account
  --kubeconfig FILE        uses its current context
  --namespace NAME         of the Lease and the agents' pods; default kvfabric-system
  --tls-dir DIR            in a cluster: keeps the fabric's CA and the bundle agents start with
  --tokens FILE            lines `tenant token`, mode 0600; default DIR/tokens
  --listen 127.0.0.1:0     address of the Kubernetes API it serves; loopback, port 0 = any
  --metrics-listen HOST:0  address of /metrics, /livez and /readyz; default 127.0.0.1:0
  --log-level LEVEL        debug, info, warn or error; default info
  --version                says which version this is
  --help                   says this

Example:
  umask 077; mkdir -p /tmp/fabric; echo "admin $(openssl rand -hex 16)" > /tmp/fabric/tokens
  kvfabric-operator --state-dir /tmp/fabric
  kubectl --kubeconfig /tmp/fabric/kubeconfig get kvp
)help";

std::optional<Endpoint> ParseEndpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Endpoint out;
  out.host = text.substr(0, colon);
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (error != std::errc() || at != end) return std::nullopt;
  return out;
}

class Parser {
 public:
  Result<OperatorFlags> Parse(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      std::string name = arguments[i];
      std::optional<std::string> value;
      const std::size_t equals = name.find('=');
      if (equals != std::string::npos) {
        value = name.substr(equals + 1);
        name.resize(equals);
      }
      if (TakeSwitch(name)) continue;
      if (!value.has_value() && i + 1 < arguments.size()) value = arguments[++i];
      TakeValue(name, value);
    }
    if (flags_.help || flags_.version) return flags_;
    CheckMode();
    if (!faults_.empty()) {
      return InvalidArgument("command line:" + faults_ + "\n  (--help shows an example)");
    }
    if (flags_.tokens.empty()) flags_.tokens = flags_.state_dir / "tokens";
    return flags_;
  }

 private:
  bool TakeSwitch(const std::string& name) {
    if (name == "--help" || name == "-h") flags_.help = true;
    if (name == "--version") flags_.version = true;
    if (name == "--in-cluster") flags_.in_cluster = true;
    return name == "--help" || name == "-h" || name == "--version" || name == "--in-cluster";
  }

  void CheckMode() {
    const int modes = (flags_.state_dir.empty() ? 0 : 1) + (flags_.kubeconfig.empty() ? 0 : 1) +
                      (flags_.in_cluster ? 1 : 0);
    if (modes != 1) {
      Fault("--state-dir", modes == 0 ? "absent: give it, --in-cluster or --kubeconfig"
                                      : "give only one of it, --in-cluster and --kubeconfig");
    }
    if (flags_.state_dir.empty() && flags_.tokens.empty()) {
      Fault("--tokens", "absent: required in a cluster; name the file with the line for admin");
    }
    if (flags_.state_dir.empty() == flags_.tls_dir.empty()) {
      Fault("--tls-dir", "required in a cluster, and only there; name a directory");
    }
    if (!kube::IsDnsLabel(flags_.ns)) {
      Fault("--namespace", "\"" + flags_.ns + "\": must be the name of a namespace");
    }
  }

  void TakeValue(const std::string& name, const std::optional<std::string>& value) {
    const bool known = name == "--state-dir" || name == "--tokens" || name == "--listen" ||
                       name == "--metrics-listen" || name == "--log-level" ||
                       name == "--kubeconfig" || name == "--namespace" || name == "--tls-dir";
    if (!known) return Fault(name, "unknown flag");
    if (!value.has_value() || value->empty()) return Fault(name, "needs a value");
    if (name == "--state-dir") flags_.state_dir = *value;
    if (name == "--tokens") flags_.tokens = *value;
    if (name == "--kubeconfig") flags_.kubeconfig = *value;
    if (name == "--tls-dir") flags_.tls_dir = *value;
    if (name == "--namespace") flags_.ns = *value;
    if (name == "--log-level" && !ParseLogLevel(*value, &flags_.log_level)) {
      Fault(name, "\"" + *value + "\": must be debug, info, warn or error");
    }
    if (name == "--metrics-listen") TakeEndpoint(name, *value, &flags_.metrics);
    if (name == "--listen") {
      TakeEndpoint(name, *value, &flags_.listen);
      if (flags_.listen.host != "127.0.0.1") {
        Fault(name, "\"" + *value + "\": the embedded API serves loopback only; write 127.0.0.1:0");
      }
    }
  }

  void TakeEndpoint(const std::string& name, const std::string& value, Endpoint* out) {
    const std::optional<Endpoint> parsed = ParseEndpoint(value);
    if (!parsed.has_value()) {
      return Fault(name, "\"" + value + "\": must be HOST:PORT, e.g. 127.0.0.1:0");
    }
    *out = *parsed;
  }

  void Fault(const std::string& name, const std::string& text) {
    faults_ += "\n  " + name + ": " + text;
  }

  OperatorFlags flags_;
  std::string faults_;
};

}  // namespace

std::string_view OperatorHelp() { return kHelp; }

Result<OperatorFlags> ParseOperatorFlags(const std::vector<std::string>& arguments) {
  return Parser().Parse(arguments);
}

}  // namespace kvfabric
