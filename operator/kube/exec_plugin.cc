#include "operator/kube/exec_plugin.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/child_output.h"
#include "operator/kube/json.h"
#include "operator/kube/pem.h"
#include "operator/kube/timestamp.h"

namespace kvfabric::kube {
namespace {

// For one line of a text that people read.
std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

std::string ExecInfo(const ExecConfig& config) {
  Json info = {{"apiVersion", config.api_version},
               {"kind", "ExecCredential"},
               {"spec", {{"interactive", false}}}};
  if (!config.cluster_json.empty()) {
    Json& cluster = info["spec"]["cluster"];
    cluster = Json::parse(config.cluster_json, nullptr, false);
    if (!config.ca_pem.empty()) {
      cluster["certificate-authority-data"] = EncodeBase64(config.ca_pem);
    }
  }
  return DumpJson(info);
}

}  // namespace

Result<ExecCredential> ParseExecCredential(const std::string& api_version, std::string_view json) {
  const Result<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return InvalidArgument("it printed no JSON object");
  if (StringAt(*parsed, "kind") != "ExecCredential") {
    return InvalidArgument("it printed something other than an ExecCredential");
  }
  if (StringAt(*parsed, "apiVersion") != api_version) {
    return InvalidArgument("it answered for " + StringAt(*parsed, "apiVersion") +
                           ", the kubeconfig says " + api_version);
  }
  const Json* status = Find(*parsed, "status");
  if (status == nullptr || !status->is_object()) return InvalidArgument("its answer has no status");
  ExecCredential out;
  out.token = StringAt(*status, "token");
  out.certificate = StringAt(*status, "clientCertificateData");
  out.key = StringAt(*status, "clientKeyData");
  if (out.token.empty() && out.certificate.empty()) {
    return InvalidArgument("its answer has neither a token nor a client certificate");
  }
  if (out.certificate.empty() != out.key.empty()) {
    return InvalidArgument("its answer has only one of client certificate and key");
  }
  if (!out.certificate.empty()) KVF_RETURN_IF_ERROR(CheckKeyPair(out.certificate, out.key));
  const bool printable =
      std::all_of(out.token.begin(), out.token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (!printable) return InvalidArgument("its token holds characters that no token has");
  const std::string expires = StringAt(*status, "expirationTimestamp");
  if (!expires.empty()) {
    out.expires_us = ParseTime(expires);
    if (!out.expires_us.has_value()) {
      return InvalidArgument("its expirationTimestamp is no time: " + OneLine(expires));
    }
  }
  return out;
}

ExecPlugin::ExecPlugin(ExecConfig config, const Clock& clock, Options options)
    : config_(std::move(config)),
      clock_(clock),
      options_(options),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ExecPlugin::ExecPlugin(ExecConfig config, const Clock& clock)
    : ExecPlugin(std::move(config), clock, Options()) {}

ExecPlugin::~ExecPlugin() { Stop(); }

void ExecPlugin::Stop() {
  ::eventfd_write(stop_.get(), 1);
  MutexLock lock(mu_);
  stopped_ = true;
  while (running_) changed_.Wait(mu_);
}

std::uint64_t ExecPlugin::runs() const {
  MutexLock lock(mu_);
  return runs_;
}

bool ExecPlugin::Fresh() const {
  if (!held_.has_value()) return false;
  if (!held_->expires_us.has_value()) return true;
  const std::int64_t leeway =
      std::chrono::duration_cast<std::chrono::microseconds>(options_.leeway).count();
  return clock_.UnixMicros() < *held_->expires_us - leeway;
}

Result<ExecCredential> ExecPlugin::Get() {
  {
    MutexLock lock(mu_);
    while (running_) changed_.Wait(mu_);
    if (stopped_) return Cancelled("credentials: stopped");
    if (Fresh()) return *held_;
    if (!failure_.ok() && clock_.Now() < retry_at_) return failure_;
    running_ = true;
    ++runs_;
  }
  Result<ExecCredential> fresh = Run();
  MutexLock lock(mu_);
  running_ = false;
  changed_.NotifyAll();
  if (!fresh.ok()) {
    failure_ = fresh.status();
    retry_at_ = clock_.Now() + options_.pause;
    return failure_;
  }
  failure_ = Status::Ok();
  held_ = *fresh;
  return fresh;
}

void ExecPlugin::Reject(const ExecCredential& credential) {
  MutexLock lock(mu_);
  if (held_.has_value() && held_->token == credential.token &&
      held_->certificate == credential.certificate) {
    held_.reset();
  }
}

Result<ExecCredential> ExecPlugin::Run() const {
  ChildCommand command;
  command.argv.push_back(config_.command);
  command.argv.insert(command.argv.end(), config_.args.begin(), config_.args.end());
  for (const auto& [name, value] : config_.env) command.env.push_back(name + "=" + value);
  command.env.push_back("KUBERNETES_EXEC_INFO=" + ExecInfo(config_));
  command.deadline = options_.deadline;
  command.stop_fd = stop_.get();
  const std::string context = "credentials: exec " + config_.command;
  const Result<ChildOutput> output = RunChild(command);
  if (!output.ok()) {
    const bool absent = output.status().code() == StatusCode::kNotFound;
    const Status status = {absent ? StatusCode::kUnauthenticated : output.status().code(),
                           "credentials: exec " + output.status().message()};
    if (!absent || config_.install_hint.empty()) return status;
    return Status(status.code(), status.message() + "; " + config_.install_hint);
  }
  if (output->exit_code != 0) {
    return Unauthenticated(context + ": exit code " + std::to_string(output->exit_code) + ": " +
                           OneLine(output->err));
  }
  Result<ExecCredential> credential = ParseExecCredential(config_.api_version, output->out);
  if (!credential.ok()) {
    return Unauthenticated(context + ": " + credential.status().message());
  }
  return credential;
}

}  // namespace kvfabric::kube
