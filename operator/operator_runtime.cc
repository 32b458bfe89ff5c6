#include "operator/operator_runtime.h"

#include <unistd.h>

#include <array>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/timer.h"
#include "http/http_server.h"
#include "operator/controllers/agent_dialer.h"
#include "operator/controllers/certificates.h"
#include "operator/controllers/control_loop.h"
#include "operator/kube/elector.h"

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

}  // namespace

// In order of construction; stopped in reverse by the destructor.
struct OperatorRuntime::Parts {
  const std::string identity = MakeIdentity();
  std::unique_ptr<kube::Elector> elector;
  std::unique_ptr<GrpcAgentDialer> dialer;
  std::unique_ptr<ControlLoop> loop;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Timer> elections;  // renewals only
  std::unique_ptr<Timer> watchdog;
  std::jthread loop_thread;

  void MakeLoop(kube::KubeApi& api, kube::KubeClient& lease_api, MetricsRegistry& metrics,
                const Options& options);
  Status StartHttp(const MetricsRegistry& metrics, const Endpoint& listen);
  void StartThreads();
  // On the timer's own thread, which its destructor waits for.
  void Elect(Timer& timer);
  void Watch() const;
};

void OperatorRuntime::Parts::MakeLoop(kube::KubeApi& api, kube::KubeClient& lease_api,
                                      MetricsRegistry& metrics, const Options& options) {
  kube::Elector::Options election;
  election.lease = {options.agent_namespace, "kvfabric-operator"};
  election.identity = identity;
  election.previous_holder_is_gone = options.previous_holder_is_gone;
  election.on_change = [this] { loop->Wake(); };
  elector = std::make_unique<kube::Elector>(lease_api, Clock::System(), std::move(election));
  TlsSource tls;
  if (options.certificates != nullptr) {
    tls = [own = options.certificates] { return own->own(); };
  }
  dialer = std::make_unique<GrpcAgentDialer>(options.admin_token, std::move(tls), &metrics);
  ControlLoop::Options control;
  control.agent_namespace = options.agent_namespace;
  control.reconciler.connection.from_members = !options.has_services;
  control.registry.operator_id = identity;
  control.registry.heartbeat = kHeartbeat;
  loop = std::make_unique<ControlLoop>(
      ControlLoop::Environment{&api, dialer.get(), elector.get(), &Clock::System(), &metrics,
                               options.certificates},
      std::move(control));
}

Status OperatorRuntime::Parts::StartHttp(const MetricsRegistry& metrics, const Endpoint& listen) {
  HttpServer::Options options;
  options.host = listen.host;
  options.port = listen.port;
  const auto health = [](bool good, const char* why) {
    return HttpReply{.status = good ? 200 : 503, .body = good ? "ok\n" : why};
  };
  std::map<std::string, HttpHandler> routes;
  routes["/metrics"] = [&metrics] {
    return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics.Render()};
  };
  // Not by the API server: its outage must not restart every operator at once.
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

void OperatorRuntime::Parts::StartThreads() {
  elections = std::make_unique<Timer>(Clock::System());
  elections->After(Clock::Duration::zero(), [this, timer = elections.get()] { Elect(*timer); });
  watchdog = std::make_unique<Timer>(Clock::System());
  watchdog->Every(kWatchdogPeriod, [this] { Watch(); });
  loop_thread = std::jthread([this](const std::stop_token& stop) { loop->Run(stop); });
}

void OperatorRuntime::Parts::Elect(Timer& timer) {
  const std::chrono::milliseconds wait = elector->Step();
  timer.After(wait, [this, raw = &timer] { Elect(*raw); });
}

// A thread that hangs must not go on as a leader whose time is over.
void OperatorRuntime::Parts::Watch() const {
  if (elector->overdue() < kWatchdogGrace) return;
  LogError("leadership is over and its thread hangs: ending the process");
  ::_exit(kWatchdogExitCode);
}

Result<std::unique_ptr<OperatorRuntime>> OperatorRuntime::Start(kube::KubeApi& api,
                                                                kube::KubeClient& elections,
                                                                MetricsRegistry& metrics,
                                                                Options options) {
  std::unique_ptr<OperatorRuntime> out(new OperatorRuntime(std::make_unique<Parts>()));
  Parts& parts = *out->parts_;
  parts.MakeLoop(api, elections, metrics, options);
  KVF_RETURN_IF_ERROR(parts.StartHttp(metrics, options.metrics_listen));
  parts.StartThreads();
  return out;
}

OperatorRuntime::OperatorRuntime(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

OperatorRuntime::~OperatorRuntime() {
  Parts& parts = *parts_;
  if (parts.loop_thread.joinable()) {
    parts.loop_thread.request_stop();
    parts.loop_thread.join();
  }
  parts.loop->Stop();
  parts.http.reset();
  parts.watchdog.reset();
  if (parts.elections == nullptr) return;
  parts.elections.reset();
  parts.elector->Release();
}

std::uint16_t OperatorRuntime::http_port() const { return parts_->http->port(); }
const std::string& OperatorRuntime::identity() const { return parts_->identity; }

}  // namespace kvfabric
