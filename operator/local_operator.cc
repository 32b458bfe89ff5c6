#include "operator/local_operator.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "operator/controllers/certificate_files.h"
#include "operator/controllers/certificates.h"
#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/object_store.h"
#include "operator/kube/token_file.h"
#include "operator/operator_runtime.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/crd_schema.h"
#include "operator/specs/printer_table.h"

namespace kvfabric {
namespace {

std::string Address(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

}  // namespace

// In order of construction, and destroyed in reverse.
struct LocalOperator::Parts {
  explicit Parts(OperatorFlags f) : flags(std::move(f)) {}
  const OperatorFlags flags;
  MetricsRegistry metrics;
  CrdAdmission admission;
  std::unique_ptr<kube::EmbeddedKubeApi> api;
  CertificateFiles certificate_files{flags.state_dir / "tls"};
  std::unique_ptr<Certificates> certificates;
  std::unique_ptr<kube::EmbeddedApiServer> api_server;
  std::unique_ptr<OperatorRuntime> runtime;

  Status OpenApi();
  Status StartServer(const kube::Tokens& tokens);
  Status StartRuntime(const std::string& admin_token);
  Status WriteFiles() const;
};

Status LocalOperator::Parts::OpenApi() {
  kube::EmbeddedKubeApi::Options options;
  options.directory = flags.state_dir / "api";
  options.admission = &admission;
  KVF_ASSIGN_OR_RETURN(api, kube::EmbeddedKubeApi::Open(std::move(options)));
  return Status::Ok();
}

Status LocalOperator::Parts::StartServer(const kube::Tokens& tokens) {
  kube::EmbeddedApiServer::Options server;
  server.port = flags.listen.port;
  server.tokens = tokens;
  server.table = [](kube::Kind kind, const kube::ObjectList& list) {
    return PrinterTable(kind, list, Clock::System().UnixMicros());
  };
  server.schema = CrdOpenApi;
  KVF_ASSIGN_OR_RETURN(api_server, kube::EmbeddedApiServer::Start(*api, std::move(server)));
  return Status::Ok();
}

Status LocalOperator::Parts::StartRuntime(const std::string& admin_token) {
  OperatorRuntime::Options options;
  options.metrics_listen = flags.metrics;
  options.admin_token = admin_token;
  options.agent_namespace = kAgentNamespace;
  options.certificates = certificates.get();
  // The directory's lock is ours, so whoever held the Lease is dead.
  options.previous_holder_is_gone = true;
  options.has_services = false;
  KVF_ASSIGN_OR_RETURN(runtime, OperatorRuntime::Start(*api, *api, metrics, std::move(options)));
  return Status::Ok();
}

Status LocalOperator::Parts::WriteFiles() const {
  KVF_RETURN_IF_ERROR(
      kube::WriteFileAtomically(flags.state_dir / "kubeconfig", api_server->Kubeconfig(), 0600));
  const std::string ready = "{\"pid\":" + std::to_string(::getpid()) + ",\"api\":\"" +
                            Address(api_server->port()) + "\",\"http\":\"" +
                            Address(runtime->http_port()) + "\"}\n";
  return kube::WriteFileAtomically(flags.state_dir / "operator.json", ready, 0600);
}

Result<std::unique_ptr<LocalOperator>> LocalOperator::Start(const OperatorFlags& flags) {
  KVF_ASSIGN_OR_RETURN(const auto tokens, kube::ReadTokenFile(flags.tokens));
  std::unique_ptr<LocalOperator> out(new LocalOperator(std::make_unique<Parts>(flags)));
  Parts& parts = *out->parts_;
  KVF_RETURN_IF_ERROR(parts.OpenApi());
  KVF_ASSIGN_OR_RETURN(parts.certificates,
                       OpenCertificates(parts.certificate_files, Clock::System(), parts.metrics));
  KVF_RETURN_IF_ERROR(parts.StartServer(tokens));
  KVF_RETURN_IF_ERROR(parts.StartRuntime(kube::FirstToken(tokens, "admin")));
  KVF_RETURN_IF_ERROR(parts.WriteFiles());
  LogInfo("operator runs", {{"state_dir", flags.state_dir.string()},
                            {"api", Address(parts.api_server->port())},
                            {"http", Address(parts.runtime->http_port())},
                            {"identity", parts.runtime->identity()}});
  return out;
}

LocalOperator::LocalOperator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

LocalOperator::~LocalOperator() {
  if (parts_->runtime == nullptr) return;
  std::error_code ignored;  // a stale file only names a dead process
  std::filesystem::remove(parts_->flags.state_dir / "operator.json", ignored);
}

std::uint16_t LocalOperator::api_port() const { return parts_->api_server->port(); }
std::uint16_t LocalOperator::http_port() const { return parts_->runtime->http_port(); }

}  // namespace kvfabric
