#include "agent/service/agent_process.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "agent/cluster/agent_state.h"
#include "agent/cluster/durable_file.h"
#include "agent/cluster/fabric_node.h"
#include "agent/service/agent_certificate.h"
#include "agent/service/bulk_server.h"
#include "agent/service/bulk_tls.h"
#include "agent/service/clear_pools.h"
#include "agent/service/grpc_cache_service.h"
#include "agent/service/grpc_control_service.h"
#include "agent/service/grpc_peer_link.h"
#include "agent/service/grpc_peer_service.h"
#include "agent/service/grpc_server.h"
#include "agent/service/local_service.h"
#include "agent/service/self_test.h"
#include "agent/service/token_table.h"
#include "agent/tier/dram_arena.h"
#include "agent/tier/memory_check.h"
#include "api/grpc_tls.h"
#include "common/executor.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/timer.h"
#include "http/http_server.h"
#include "transport/event_loop.h"

namespace kvfabric {

namespace {

// Says which setting of agent.yaml an address came from.
template <typename T>
Result<T> Of(const char* setting, Result<T> listening) {
  if (!listening.ok()) return listening.status().WithContext(setting);
  return listening;
}

// The directory of a pool knows the blocks of the slots that are this node's, about as many as lie
// here: at most 85 bytes each, for blocks of 16 KiB less than 1/64 of the arena.
constexpr std::uint64_t kDirectoryShare = 64;
constexpr std::uint64_t kLeastDirectoryBytes = std::uint64_t{8} << 20U;
constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{256} << 20U;
constexpr std::size_t kMaxQueued = 65'536;
constexpr std::chrono::milliseconds kStopPatience{500};
constexpr std::chrono::seconds kTokenCheck{1};
constexpr std::chrono::milliseconds kCertificateCheck{500};

// Field 22 of /proc/self/stat, in clock ticks since boot: with the pid it names this process.
std::uint64_t StartTime() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  // The name in field 2 may hold blanks; what follows its closing bracket does not.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int number = 3; number <= 22; ++number) rest >> field;
  std::uint64_t value = 0;
  std::from_chars(field.data(), field.data() + field.size(), value);
  return value;
}

std::uint64_t DirectoryBytes(std::uint64_t arena_bytes) {
  return std::clamp(arena_bytes / kDirectoryShare, kLeastDirectoryBytes, kMostDirectoryBytes);
}

std::size_t LoopCount(const AgentConfig& config) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min<std::size_t>(cores, config.workers);
}

}  // namespace

MemoryNeed MemoryNeedOf(std::uint64_t arena_bytes) {
  return {arena_bytes, CacheEngine::MostIndexBytes(arena_bytes) + DirectoryBytes(arena_bytes)};
}

// In the order of construction; taken apart from the end.
struct AgentProcess::Parts {
  AgentConfig config;
  std::string version;
  AgentEndpoints endpoints;
  const Clock& clock = Clock::System();
  MetricsRegistry metrics;
  std::unique_ptr<AgentState> state;
  std::unique_ptr<TokenTable> tokens;
  std::unique_ptr<HandshakeWatch> handshakes;  // both null: in clear
  std::unique_ptr<AgentCertificate> certificate;
  ClearPools clear_pools;
  std::unique_ptr<BulkTls> bulk_tls;
  Timer timer{clock};
  WorkerPool prefault{"prefault", 1, kMaxQueued};
  WorkerPool background{"background", 2, kMaxQueued};
  WorkerPool copy;
  WorkerPool requests{"grpc", 2, 8192};
  WorkerPool peers{"peer", 2, kMaxQueued};
  WorkerPool control{"control", 1, 1024};
  std::unique_ptr<DramArena> arena;
  std::unique_ptr<CacheEngine> probe;
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::unique_ptr<SelfTest> self_test;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<GrpcPeerConnector> connector;
  std::unique_ptr<FabricNode> node;
  std::unique_ptr<LocalService> local;
  // Released when `local` serves; acquired by the loops. Null before and after.
  std::atomic<LocalService*> tcp_clients = nullptr;
  std::unique_ptr<BulkServer> bulk;
  std::unique_ptr<GrpcControlService> control_service;
  std::unique_ptr<GrpcPeerService> peer_service;
  std::unique_ptr<GrpcCacheService> cache_service;
  std::unique_ptr<GrpcServer> grpc;
  Timer::Id token_timer = 0, certificate_timer = 0;
  std::string bundle_fault;  // the timer's; told once
  Mutex serve_mu;
  // Memory is there and all is open; what may be missing is a certificate.
  bool may_serve GUARDED_BY(serve_mu) = false;
  bool stopped = false;

  Parts(AgentConfig c, std::string v)
      : config(std::move(c)), version(std::move(v)), copy("copy", config.workers, kMaxQueued) {}

  std::vector<EventLoop*> LoopRefs() const {
    std::vector<EventLoop*> refs;
    for (const auto& loop : loops) refs.push_back(loop.get());
    return refs;
  }
  TenantOfToken Authentication() {
    return [this](std::string_view token) { return tokens->TenantOf(token); };
  }
  CacheEngine::Environment EngineEnvironment() {
    CacheEngine::Environment environment;
    environment.arena = arena.get();
    environment.clock = &clock;
    environment.background = &background;
    environment.metrics = &metrics;
    return environment;
  }
  TlsSource Tls() {
    if (certificate == nullptr) return nullptr;
    return [this] { return certificate->material(); };
  }
  // The self-test's word, unless nobody may be served yet.
  AgentHealth Health() const {
    AgentHealth health = self_test->health();
    if (health.ready && certificate != nullptr && !certificate->own()) {
      health.ready = false;
      health.not_ready_reason = "no certificate of its own yet: waits for the operator";
    }
    return health;
  }
  // Peers and clients over gRPC are served with a certificate of our own only.
  void ServeIfCertified() EXCLUDES(serve_mu) {
    MutexLock lock(serve_mu);
    if (!may_serve) return;
    const bool serve = certificate == nullptr || certificate->own();
    peer_service->SetServing(serve);
    cache_service->SetServing(serve);
    grpc->SetServing(serve);
  }
  std::filesystem::path JsonPath() const { return state->directory() / "agent.json"; }

  Status CheckMachine();
  Status OpenCertificate();
  void CheckCertificate();
  Status StartMemory();
  Status StartHttp();
  Status StartFabric();
  Status StartBulk();
  Status StartGrpc();
  Status WaitForMemory(const std::function<bool()>& interrupted);
  Status StartServing();
  Status WriteJson();
  void Stop();
};

Status AgentProcess::Parts::CheckMachine() {
  KVF_RETURN_IF_ERROR(CheckMemory(MemoryNeedOf(config.arena_bytes), ReadMemoryFigures()));
  KVF_ASSIGN_OR_RETURN(state, AgentState::Open(config.state_dir, clock));
  KVF_ASSIGN_OR_RETURN(tokens, TokenTable::Load(config.tokens_file));
  if (!tokens->TokenOf(kAdminTenant)) {
    return InvalidArgument("tokens " + config.tokens_file +
                           ": no line for admin: write `admin TOKEN`, peers need it");
  }
  // Nobody must find the ports of an earlier run.
  return RemoveFileDurably(JsonPath());
}

Status AgentProcess::Parts::OpenCertificate() {
  if (config.tls_bootstrap_dir.empty()) return Status::Ok();
  handshakes = std::make_unique<HandshakeWatch>(metrics, "kvfabric_agent");
  AgentCertificate::Options options;
  options.node_name = config.node_name;
  options.bootstrap = config.tls_bootstrap_dir;
  options.directory = state->directory() / "tls";
  KVF_ASSIGN_OR_RETURN(
      certificate,
      Of("tls.bootstrapDir", AgentCertificate::Open(std::move(options), {&clock, &metrics})));
  bulk_tls = std::make_unique<BulkTls>(
      Tls(), [this](const std::string& pool) { return clear_pools.Contains(pool); });
  return Status::Ok();
}

// On the timer.
void AgentProcess::Parts::CheckCertificate() {
  const Status status = certificate->Check();
  if (!status.ok() && status.message() != bundle_fault) {
    LogWarn("bootstrap bundle not read", {{"reason", status.message()}});
  }
  bundle_fault = status.message();
  ServeIfCertified();
}

Status AgentProcess::Parts::StartMemory() {
  DramArena::Options options;
  options.bytes = config.arena_bytes;
  options.clock = &clock;
  options.background = &prefault;
  KVF_ASSIGN_OR_RETURN(arena, DramArena::Create(options));
  KVF_ASSIGN_OR_RETURN(probe,
                       CacheEngine::Create(SelfTest::ProbeEngineOptions(), EngineEnvironment()));
  for (std::size_t i = 0; i < LoopCount(config); ++i) {
    KVF_ASSIGN_OR_RETURN(auto loop, EventLoop::Create({.name = "loop-" + std::to_string(i)}));
    loops.push_back(std::move(loop));
  }
  SelfTest::Environment environment;
  environment.arena = arena.get();
  environment.engine = probe.get();
  environment.executors = {
      {"background", &background}, {"copy", &copy}, {"grpc", &requests}, {"peer", &peers}};
  for (const auto& loop : loops) environment.executors.emplace_back("loop", loop.get());
  environment.clock = &clock;
  environment.metrics = &metrics;
  self_test = std::make_unique<SelfTest>(SelfTest::Options{}, std::move(environment));
  return Status::Ok();
}

Status AgentProcess::Parts::StartHttp() {
  HttpServer::Options options;
  options.host = config.http.host;
  options.port = config.http.port;
  KVF_ASSIGN_OR_RETURN(
      http, Of("listen.http",
               HttpServer::Start(
                   options,
                   {{"/livez", [] { return HttpReply{.body = "ok\n"}; }},
                    {"/readyz",
                     [this] {
                       const AgentHealth health = Health();
                       if (health.ready) return HttpReply{.body = "ok\n"};
                       return HttpReply{.status = 503, .body = health.not_ready_reason + "\n"};
                     }},
                    {"/metrics", [this] {
                       return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                                        .body = metrics.Render()};
                     }}})));
  endpoints.http = {config.http.host, http->port()};
  return Status::Ok();
}

Status AgentProcess::Parts::StartFabric() {
  GrpcPeerConnector::Options outward;
  outward.self = {config.node_name, state->agent_uid(), state->boot_epoch()};
  outward.tls = Tls();
  outward.bulk.tls = bulk_tls.get();
  outward.token = [this] { return tokens->TokenOf(kAdminTenant).value_or(""); };
  GrpcPeerConnector::Environment outward_environment;
  outward_environment.loops = LoopRefs();
  outward_environment.timer = &timer;
  outward_environment.clock = &clock;
  outward_environment.metrics = &metrics;
  connector = std::make_unique<GrpcPeerConnector>(std::move(outward), outward_environment);

  FabricNode::Options options;
  options.node_name = config.node_name;
  options.directory_bytes_per_pool = DirectoryBytes(config.arena_bytes);
  FabricNode::Environment environment;
  environment.clock = &clock;
  environment.timer = &timer;
  environment.background = &background;
  environment.copy = &copy;
  environment.metrics = &metrics;
  environment.connector = connector.get();
  environment.state = state.get();
  environment.make_engine = [this](CacheEngine::Options engine) {
    return CacheEngine::Create(std::move(engine), EngineEnvironment());
  };
  node = std::make_unique<FabricNode>(std::move(options), std::move(environment));
  return Status::Ok();
}

Status AgentProcess::Parts::StartBulk() {
  BulkServer::Options options;
  options.host = config.bulk.host;
  options.port = config.bulk.port;
  options.tls = bulk_tls.get();
  options.on_client = [this](FrameConnection& connection, const ReceivedFrame& first) {
    LocalService* const clients = tcp_clients.load(std::memory_order_acquire);
    return clients != nullptr ? clients->TakeOver(connection, first)
                              : Unavailable("agent: does not serve yet");
  };
  BulkServer::Environment environment;
  environment.handler = &node->peer_handler();
  environment.loops = LoopRefs();
  environment.clock = &clock;
  environment.metrics = &metrics;
  KVF_ASSIGN_OR_RETURN(
      bulk, Of("listen.bulk", BulkServer::Listen(std::move(options), std::move(environment))));
  endpoints.bulk = {config.bulk.host, bulk->port()};
  return Status::Ok();
}

Status AgentProcess::Parts::StartGrpc() {
  GrpcControlService::Options control_options;
  control_options.version = version;
  control_options.zone = config.zone;
  control_options.arena_bytes = config.arena_bytes;
  control_options.tenant_of_token = Authentication();
  control_options.health = [this] { return Health(); };
  GrpcControlService::Environment at_control;
  at_control.port = node.get();
  at_control.executor = &control;
  at_control.timer = &timer;
  at_control.metrics = &metrics;
  at_control.certificate = certificate.get();
  at_control.on_certificate = [this] { ServeIfCertified(); };
  at_control.clear_pools = &clear_pools;
  control_service = std::make_unique<GrpcControlService>(std::move(control_options), at_control);

  GrpcPeerService::Options peer_options;
  peer_options.self = {config.node_name, state->agent_uid(), state->boot_epoch()};
  peer_options.tenant_of_token = Authentication();
  peer_options.certificates = certificate != nullptr;
  GrpcPeerService::Environment at_peer;
  at_peer.handler = &node->peer_handler();
  at_peer.bulk = bulk.get();
  at_peer.executor = &peers;
  at_peer.timer = &timer;
  at_peer.clock = &clock;
  at_peer.metrics = &metrics;
  peer_service = std::make_unique<GrpcPeerService>(std::move(peer_options), at_peer);

  GrpcCacheService::Options cache_options;
  cache_options.node_name = config.node_name;
  cache_options.tenant_of_token = Authentication();
  GrpcCacheService::Environment at_cache;
  at_cache.fabric = node.get();
  at_cache.executor = &requests;
  at_cache.clock = &clock;
  at_cache.metrics = &metrics;
  cache_service = std::make_unique<GrpcCacheService>(std::move(cache_options), at_cache);

  GrpcServer::Options server;
  server.listen = config.grpc;
  server.tls = Tls();
  KVF_ASSIGN_OR_RETURN(
      grpc, Of("listen.grpc",
               GrpcServer::Start(server, {&control_service->service(), &peer_service->service(),
                                          &cache_service->service()})));
  grpc->SetServing(false);
  endpoints.grpc = {config.grpc.host, grpc->port()};
  return Status::Ok();
}

Status AgentProcess::Parts::WaitForMemory(const std::function<bool()>& interrupted) {
  const auto began = clock.Now();
  while (!arena->ready()) {
    KVF_RETURN_IF_ERROR(arena->prefault_status());
    if (interrupted()) return Cancelled("agent: interrupted while memory was being prefaulted");
  }
  KVF_RETURN_IF_ERROR(arena->prefault_status());
  LogInfo("memory ready",
          {{"arena_bytes", config.arena_bytes},
           {"took_ms",
            std::chrono::duration_cast<std::chrono::milliseconds>(clock.Now() - began).count()}});
  return Status::Ok();
}

Status AgentProcess::Parts::StartServing() {
  LocalService::Options options;
  options.socket_path = config.socket_path;
  options.tcp_clients = config.local_mode;
  LocalService::Environment environment;
  environment.fabric = node.get();
  environment.arena = arena.get();
  environment.tenant_of = Authentication();
  environment.loops = LoopRefs();
  environment.put_workers = &copy;
  environment.clock = &clock;
  environment.metrics = &metrics;
  KVF_ASSIGN_OR_RETURN(
      local, Of("socketPath", LocalService::Start(std::move(options), std::move(environment))));
  endpoints.socket_path = config.socket_path;
  tcp_clients.store(local.get(), std::memory_order_release);
  {
    MutexLock lock(serve_mu);
    may_serve = true;
  }
  ServeIfCertified();
  if (certificate != nullptr) {
    certificate_timer = timer.Every(kCertificateCheck, [this] { CheckCertificate(); });
  }
  token_timer = timer.Every(kTokenCheck, [this] {
    if (const Status status = tokens->ReloadIfChanged(); !status.ok()) {
      LogWarn("tokens not reloaded", {{"reason", status.message()}});
    }
  });
  return Status::Ok();
}

Status AgentProcess::Parts::WriteJson() {
  const nlohmann::json json = {{"pid", ::getpid()},
                               {"start_time", StartTime()},
                               {"node", config.node_name},
                               {"agentUID", state->agent_uid()},
                               {"boot_epoch", state->boot_epoch()},
                               {"grpc", FormatAddress(endpoints.grpc)},
                               {"bulk", FormatAddress(endpoints.bulk)},
                               {"http", FormatAddress(endpoints.http)},
                               {"socket", endpoints.socket_path}};
  return WriteFileDurably(JsonPath(), AsBytes(json.dump() + "\n"));
}

void AgentProcess::Parts::Stop() {
  if (std::exchange(stopped, true)) return;
  {
    MutexLock lock(serve_mu);
    may_serve = false;
  }
  if (token_timer != 0) timer.CancelAndWait(token_timer);
  if (certificate_timer != 0) timer.CancelAndWait(certificate_timer);
  if (grpc != nullptr) {
    grpc->SetServing(false);
    cache_service->SetServing(false);
    peer_service->SetServing(false);
  }
  tcp_clients.store(nullptr, std::memory_order_release);
  for (const auto& loop : loops) loop->RunSync([] {});  // whoever saw it has handed over
  local.reset();
  if (grpc != nullptr) grpc->Stop(kStopPatience);
  grpc.reset();
  cache_service.reset();
  peer_service.reset();
  control_service.reset();
  bulk.reset();
  node.reset();
  connector.reset();
  http.reset();
  self_test.reset();
  // Whoever reads this file must not dial us any more.
  if (state != nullptr) {
    if (const Status status = RemoveFileDurably(JsonPath()); !status.ok()) {
      LogWarn("agent.json not removed", {{"reason", status.message()}});
    }
  }
}

Result<std::unique_ptr<AgentProcess>> AgentProcess::Start(
    const AgentConfig& config, const std::string& version,
    const std::function<bool()>& interrupted) {
  std::unique_ptr<AgentProcess> agent(new AgentProcess(std::make_unique<Parts>(config, version)));
  Parts& parts = *agent->parts_;
  KVF_RETURN_IF_ERROR(parts.CheckMachine());
  KVF_RETURN_IF_ERROR(parts.OpenCertificate());
  KVF_RETURN_IF_ERROR(parts.StartMemory());
  KVF_RETURN_IF_ERROR(parts.StartHttp());
  KVF_RETURN_IF_ERROR(parts.StartFabric());
  KVF_RETURN_IF_ERROR(parts.StartBulk());
  KVF_RETURN_IF_ERROR(parts.StartGrpc());
  KVF_RETURN_IF_ERROR(parts.WaitForMemory(interrupted));
  KVF_RETURN_IF_ERROR(parts.StartServing());
  KVF_RETURN_IF_ERROR(parts.WriteJson());
  LogInfo("agent serves", {{"node", config.node_name},
                           {"boot_epoch", parts.state->boot_epoch()},
                           {"grpc", FormatAddress(parts.endpoints.grpc)},
                           {"bulk", FormatAddress(parts.endpoints.bulk)},
                           {"http", FormatAddress(parts.endpoints.http)},
                           {"socket", parts.endpoints.socket_path}});
  return agent;
}

AgentProcess::AgentProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

AgentProcess::~AgentProcess() { Stop(); }

const AgentEndpoints& AgentProcess::endpoints() const { return parts_->endpoints; }

void AgentProcess::Stop() { parts_->Stop(); }

}  // namespace kvfabric
