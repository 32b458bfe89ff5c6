#include "operator/cluster_operator.h"

#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "operator/controllers/certificate_files.h"
#include "operator/controllers/certificates.h"
#include "operator/kube/http_kube.h"
#include "operator/kube/kubeconfig.h"
#include "operator/kube/token_file.h"
#include "operator/operator_runtime.h"

namespace kvfabric {
namespace {

// A write of a leader whose time is over must have ended before another one leads: less than the
// lease has left when its holder stops (lease duration less renew deadline).
constexpr std::chrono::milliseconds kCallTimeout{2800};

Result<kube::ApiTarget> TargetOf(const OperatorFlags& flags) {
  if (!flags.kubeconfig.empty()) return kube::LoadKubeconfig({flags.kubeconfig});
  return kube::InClusterTarget({flags.service_host, flags.service_port});
}

}  // namespace

// In order of construction, and destroyed in reverse.
struct ClusterOperator::Parts {
  explicit Parts(const OperatorFlags& flags) : certificate_files(flags.tls_dir) {}
  MetricsRegistry metrics;
  CertificateFiles certificate_files;
  std::unique_ptr<Certificates> certificates;
  std::unique_ptr<kube::HttpKube> api;
  std::unique_ptr<OperatorRuntime> runtime;
};

Result<std::unique_ptr<ClusterOperator>> ClusterOperator::Start(const OperatorFlags& flags) {
  KVF_ASSIGN_OR_RETURN(const auto tokens, kube::ReadTokenFile(flags.tokens));
  std::unique_ptr<ClusterOperator> out(new ClusterOperator(std::make_unique<Parts>(flags)));
  Parts& parts = *out->parts_;
  kube::HttpKube::Options client;
  KVF_ASSIGN_OR_RETURN(client.target, TargetOf(flags));
  client.user_agent = "kvfabric-operator/" KVF_VERSION " (linux/amd64)";
  client.metrics = &parts.metrics;
  client.call_timeout = kCallTimeout;
  const std::string server = client.target.server;
  KVF_ASSIGN_OR_RETURN(parts.api, kube::HttpKube::Create(std::move(client)));
  KVF_ASSIGN_OR_RETURN(parts.certificates,
                       OpenCertificates(parts.certificate_files, Clock::System(), parts.metrics));
  OperatorRuntime::Options options;
  options.certificates = parts.certificates.get();
  options.metrics_listen = flags.metrics;
  options.admin_token = kube::FirstToken(tokens, "admin");
  options.agent_namespace = flags.ns;
  KVF_ASSIGN_OR_RETURN(parts.runtime, OperatorRuntime::Start(*parts.api, *parts.api, parts.metrics,
                                                             std::move(options)));
  LogInfo("operator runs", {{"api", server},
                            {"namespace", flags.ns},
                            {"http_port", parts.runtime->http_port()},
                            {"identity", parts.runtime->identity()}});
  return out;
}

ClusterOperator::ClusterOperator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ClusterOperator::~ClusterOperator() = default;

std::uint16_t ClusterOperator::http_port() const { return parts_->runtime->http_port(); }

}  // namespace kvfabric
