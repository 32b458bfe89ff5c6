#include "operator/local_operator.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/metrics.h"
#include "common/timer.h"
#include "http/http_server.h"
#include "operator/controllers/agent_dialer.h"
#include "operator/controllers/control_loop.h"
#include "operator/kube/elector.h"
#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/object_store.h"
#include "operator/kube/token_file.h"
#include "operator/specs/crd_schema.h"
#include "operator/specs/printer_table.h"

namespace kvfabric {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{500};
constexpr std::chrono::seconds kLoopMayTake{10};   // then /livez fails
constexpr std::chrono::seconds kWatchdogGrace{2};  // past the renew deadline
constexpr std::chrono::milliseconds kWatchdogPeriod{500};
constexpr int kWatchdogExitCode = 70;

std::string MakeIdentity() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'l', 'o', 'c', 'a', 'l'};
  std::random_device device;
  return std::string(host.data()) + "_" + std::to_string(device()) + std::to_string(device());
}

std::string Address(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

}  // namespace

// In order of construction; destroyed in reverse by hand, see Stop.
struct LocalOperator::Parts {
  OperatorFlags flags;
  MetricsRegistry metrics;
  CrdAdmission admission;
  std::string identity = MakeIdentity();
  std::unique_ptr<kube::EmbeddedKubeApi> api;
  std::unique_ptr<kube::Elector> elector;
  std::unique_ptr<GrpcAgentDialer> dialer;
  std::unique_ptr<ControlLoop> loop;
  std::unique_ptr<kube::EmbeddedApiServer> api_server;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Timer> elections;  // renewals only, so that nothing delays them
  std::unique_ptr<Timer> watchdog;
  std::jthread loop_thread;

  Status OpenApi();
  Status StartServers(const kube::Tokens& tokens);
  Status WriteFiles();
  void MakeLoop(const std::string& admin_token);
  // On the timer's own thread, which its destructor waits for.
  void Elect(Timer& timer);
  void Watch() const;
  void Stop();
};

Status LocalOperator::Parts::OpenApi() {
  kube::EmbeddedKubeApi::Options options;
  options.directory = flags.state_dir / "api";
  options.admission = &admission;
  KVF_ASSIGN_OR_RETURN(api, kube::EmbeddedKubeApi::Open(std::move(options)));
  return Status::Ok();
}

void LocalOperator::Parts::MakeLoop(const std::string& admin_token) {
  kube::Elector::Options election;
  election.lease = {kAgentNamespace, "kvfabric-operator"};
  election.identity = identity;
  // The directory's lock is ours, so whoever held the Lease is dead.
  election.previous_holder_is_gone = true;
  election.on_change = [this] { loop->Wake(); };
  elector = std::make_unique<kube::Elector>(*api, Clock::System(), std::move(election));
  dialer = std::make_unique<GrpcAgentDialer>(admin_token);
  ControlLoop::Options options;
  options.registry.operator_id = identity;
  options.registry.heartbeat = kHeartbeat;
  loop = std::make_unique<ControlLoop>(
      ControlLoop::Environment{api.get(), dialer.get(), elector.get(), &Clock::System(), &metrics},
      std::move(options));
}

Status LocalOperator::Parts::StartServers(const kube::Tokens& tokens) {
  kube::EmbeddedApiServer::Options server;
  server.port = flags.listen.port;
  server.tokens = tokens;
  server.table = [](kube::Kind kind, const kube::ObjectList& list) {
    return PrinterTable(kind, list, Clock::System().UnixMicros());
  };
  KVF_ASSIGN_OR_RETURN(api_server, kube::EmbeddedApiServer::Start(*api, std::move(server)));
  HttpServer::Options options;
  options.host = flags.metrics.host;
  options.port = flags.metrics.port;
  const auto health = [](bool good, const char* why) {
    return HttpReply{.status = good ? 200 : 503, .body = good ? "ok\n" : why};
  };
  std::map<std::string, HttpHandler> routes;
  routes["/metrics"] = [this] {
    return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics.Render()};
  };
  routes["/livez"] = [this, health] {
    const bool steps = Clock::System().Now() - loop->last_step() < kLoopMayTake;
    return health(steps && elector->overdue() < kWatchdogGrace, "the control loop hangs\n");
  };
  routes["/readyz"] = [this, health] {
    return health(loop->synced(), "the caches are not filled\n");
  };
  KVF_ASSIGN_OR_RETURN(http, HttpServer::Start(options, std::move(routes)));
  return Status::Ok();
}

Status LocalOperator::Parts::WriteFiles() {
  KVF_RETURN_IF_ERROR(
      kube::WriteFileAtomically(flags.state_dir / "kubeconfig", api_server->Kubeconfig(), 0600));
  const std::string ready = "{\"pid\":" + std::to_string(::getpid()) + ",\"api\":\"" +
                            Address(api_server->port()) + "\",\"http\":\"" + Address(http->port()) +
                            "\"}\n";
  return kube::WriteFileAtomically(flags.state_dir / "operator.json", ready, 0600);
}

void LocalOperator::Parts::Elect(Timer& timer) {
  const std::chrono::milliseconds wait = elector->Step();
  timer.After(wait, [this, raw = &timer] { Elect(*raw); });
}

// A thread that hangs must not go on as a leader whose time is over.
void LocalOperator::Parts::Watch() const {
  if (elector->overdue() < kWatchdogGrace) return;
  LogError("leadership is over and its thread hangs: ending the process");
  ::_exit(kWatchdogExitCode);
}

void LocalOperator::Parts::Stop() {
  if (loop_thread.joinable()) {
    loop_thread.request_stop();
    loop_thread.join();
  }
  if (loop != nullptr) loop->Stop();
  http.reset();
  api_server.reset();
  watchdog.reset();
  if (elections != nullptr) {
    elections.reset();
    elector->Release();
  }
  loop.reset();
  dialer.reset();
  elector.reset();
  api.reset();
}

Result<std::unique_ptr<LocalOperator>> LocalOperator::Start(const OperatorFlags& flags) {
  KVF_ASSIGN_OR_RETURN(const auto tokens, kube::ReadTokenFile(flags.tokens));
  std::unique_ptr<LocalOperator> out(new LocalOperator(std::make_unique<Parts>()));
  Parts& parts = *out->parts_;
  parts.flags = flags;
  KVF_RETURN_IF_ERROR(parts.OpenApi());
  parts.MakeLoop(kube::FirstToken(tokens, "admin"));
  KVF_RETURN_IF_ERROR(parts.StartServers(tokens));
  KVF_RETURN_IF_ERROR(parts.WriteFiles());
  parts.elections = std::make_unique<Timer>(Clock::System());
  parts.elections->After(Clock::Duration::zero(),
                         [raw = &parts, timer = parts.elections.get()] { raw->Elect(*timer); });
  parts.watchdog = std::make_unique<Timer>(Clock::System());
  parts.watchdog->Every(kWatchdogPeriod, [raw = &parts] { raw->Watch(); });
  parts.loop_thread =
      std::jthread([raw = &parts](const std::stop_token& stop) { raw->loop->Run(stop); });
  LogInfo("operator runs", {{"state_dir", flags.state_dir.string()},
                            {"api", Address(parts.api_server->port())},
                            {"http", Address(parts.http->port())},
                            {"identity", parts.identity}});
  return out;
}

LocalOperator::LocalOperator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

LocalOperator::~LocalOperator() {
  const bool ran = parts_->loop_thread.joinable();
  parts_->Stop();
  if (!ran) return;
  std::error_code ignored;  // a stale file only names a dead process
  std::filesystem::remove(parts_->flags.state_dir / "operator.json", ignored);
}

std::uint16_t LocalOperator::api_port() const { return parts_->api_server->port(); }
std::uint16_t LocalOperator::http_port() const { return parts_->http->port(); }

}  // namespace kvfabric
