#include "agent/service/local_service.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "agent/service/local_connection.h"
#include "common/log.h"
#include "transport/plain_stream.h"

namespace kvfabric {

namespace {
constexpr std::chrono::milliseconds kLaggardCheck{200};
constexpr FrameLimits kBeforeHello{.max_body_bytes = 16U << 10U, .max_payload_bytes = 0};
}  // namespace

LocalMetrics::LocalMetrics(MetricsRegistry& r)
    : registry(r),
      hello(r, "local", "hello"),
      lookup(r, "local", "lookup"),
      get(r, "local", "get"),
      put(r, "local", "put"),
      remove(r, "local", "delete"),
      stat(r, "local", "stat"),
      connections(r.GetGauge("kvfabric_service_local_connections", "Clients connected")),
      refused_connections(r.GetCounter("kvfabric_service_local_refused_connections_total",
                                       "Connections over the bound, closed at once")),
      laggards(r.GetCounter("kvfabric_service_local_laggards_total",
                            "Clients disconnected because they did not unmap a closed memfd")),
      foreign_locations(
          r.GetCounter("kvfabric_service_local_foreign_locations_total",
                       "Blocks not answered because their memory is not, or no longer, the "
                       "tenant's")),
      inline_no_space(r.GetCounter("kvfabric_service_local_inline_no_space_total",
                                   "Blocks over TCP dropped at the byte budget")),
      checksum_mismatches(r.GetCounter("kvfabric_service_local_checksum_mismatches_total",
                                       "Blocks over TCP that arrived broken")) {}

void LocalMetrics::CountFault(const Status& why) {
  if (why.ok() || why.code() == StatusCode::kCancelled || why.code() == StatusCode::kUnavailable ||
      why.code() == StatusCode::kNotFound) {
    return;
  }
  registry
      .GetCounter("kvfabric_service_local_faults_total",
                  "Connections ended because the client spoke wrongly, by status",
                  {{"code", std::string(StatusCodeName(why.code()))}})
      .Add();
}

LocalConnections::LocalConnections(LocalService::Options service_options,
                                   LocalService::Environment service_environment)
    : options(std::move(service_options)),
      environment(std::move(service_environment)),
      metrics(*environment.metrics),
      inline_budget(std::make_shared<ByteBudget>(options.max_inline_bytes)) {}

FrameConnection::Options LocalConnections::FrameOptions() const {
  FrameConnection::Options frames;
  frames.limits = kBeforeHello;
  frames.idle_timeout = options.hello_timeout;
  frames.slow_frame_timeout = options.hello_timeout;
  return frames;
}

std::shared_ptr<LocalConnection> LocalConnections::Make(
    EventLoop& loop, bool over_tcp, const std::shared_ptr<LocalConnections>& self) {
  std::shared_ptr<LocalConnection> connection;
  {
    MutexLock lock(mu_);
    if (!closed_ && entries_.size() < options.max_connections) {
      const std::uint64_t id = next_id_++;
      connection = std::make_shared<LocalConnection>(id, over_tcp, self);
      entries_.emplace(id, Entry{&loop, connection});
    }
  }
  if (connection != nullptr) {
    metrics.connections.Add(1);
  } else {
    metrics.refused_connections.Add();
  }
  return connection;
}

void LocalConnections::Accept(UniqueFd fd, std::string peer,
                              const std::shared_ptr<LocalConnections>& self) {
  EventLoop& loop =
      *environment
           .loops[next_loop_.fetch_add(1, std::memory_order_relaxed) % environment.loops.size()];
  const auto socket = std::make_shared<UniqueFd>(std::move(fd));
  // A loop that refuses is swamped or ends; the socket closes with the task.
  static_cast<void>(loop.Submit([&loop, socket, peer = std::move(peer), self] {
    const auto connection = self->Make(loop, false, self);
    if (connection == nullptr) return;
    auto frames =
        FrameConnection::Start(loop, std::make_unique<PlainStream>(std::move(*socket), peer, true),
                               self->FrameOptions(), connection);
    if (frames.ok()) {
      connection->Attach(std::move(frames).value());
    } else {
      connection->OnClosed(frames.status());
    }
  }));
}

void LocalConnections::Remove(std::uint64_t id) {
  {
    MutexLock lock(mu_);
    if (entries_.erase(id) == 0) return;
  }
  metrics.connections.Add(-1);
}

std::size_t LocalConnections::size() const {
  MutexLock lock(mu_);
  return entries_.size();
}

bool LocalConnections::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

void LocalConnections::Post(std::uint64_t id, std::function<void(LocalConnection&)> task) {
  MutexLock lock(mu_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  // Refused only by a loop that is swamped or ends; the laggard check comes again.
  static_cast<void>(
      found->second.loop->Submit([weak = found->second.connection, task = std::move(task)] {
        if (const auto connection = weak.lock()) task(*connection);
      }));
}

void LocalConnections::CloseAll() {
  {
    MutexLock lock(mu_);
    closed_ = true;
  }
  leash.Cut();
  for (EventLoop* const loop : environment.loops) {
    static_cast<void>(loop->RunSync([this, loop] {
      std::vector<std::shared_ptr<LocalConnection>> here;
      {
        MutexLock lock(mu_);
        for (const auto& [id, entry] : entries_) {
          if (entry.loop != loop) continue;
          if (auto connection = entry.connection.lock()) here.push_back(std::move(connection));
        }
      }
      for (const auto& connection : here) {
        connection->Close(Cancelled("local socket: this agent ends"));
      }
    }));
  }
}

Result<std::unique_ptr<LocalService>> LocalService::Start(Options options,
                                                          Environment environment) {
  KVF_CHECK(!environment.loops.empty(), "a service without a loop");
  DramArena& arena = *environment.arena;
  EventLoop& first_loop = *environment.loops[0];
  const std::string path = options.socket_path;
  const auto connections =
      std::make_shared<LocalConnections>(std::move(options), std::move(environment));
  std::unique_ptr<LocalService> service(new LocalService(arena, connections));
  if (!path.empty()) {
    Listener::Options listen;
    KVF_ASSIGN_OR_RETURN(listen.address, SocketAddress::Unix(path));
    KVF_ASSIGN_OR_RETURN(
        service->listener_,
        Listener::Listen(first_loop, std::move(listen), [connections](UniqueFd fd, std::string p) {
          connections->Accept(std::move(fd), std::move(p), connections);
        }));
  }
  arena.SetObserver(service.get());
  static_cast<void>(first_loop.RunSync([&] { WatchLaggards(first_loop, connections); }));
  return service;
}

LocalService::LocalService(DramArena& arena, std::shared_ptr<LocalConnections> connections)
    : arena_(arena), connections_(std::move(connections)) {}

LocalService::~LocalService() {
  listener_.reset();
  arena_.SetObserver(nullptr);
  connections_->CloseAll();
}

std::size_t LocalService::connections() const { return connections_->size(); }

Status LocalService::TakeOver(FrameConnection& connection, const ReceivedFrame& first) {
  if (!connections_->options.tcp_clients) {
    return PermissionDenied("bulk port: HELLO in clear: this agent serves clients over TLS only");
  }
  const auto client = connections_->Make(connection.loop(), true, connections_);
  if (client == nullptr) {
    return ResourceExhausted("local service: connect: too many clients (limit " +
                             std::to_string(connections_->options.max_connections) + ")");
  }
  connection.SetHandler(client, kBeforeHello);
  client->Attach(connection.shared_from_this());
  return client->OnHello(first);
}

// A client finds a new memfd in the first answer that names it.
void LocalService::OnMemfd(const std::string& /*tenant*/, const MemfdRef& /*memfd*/) {}

void LocalService::OnClosing(std::uint64_t memfd_id, const std::vector<std::uint64_t>& sessions) {
  for (const std::uint64_t session : sessions) {
    connections_->Post(session, [memfd_id](LocalConnection& c) { c.AskToUnmap(memfd_id); });
  }
}

void LocalService::WatchLaggards(EventLoop& loop,
                                 const std::weak_ptr<LocalConnections>& connections) {
  loop.RunAfter(kLaggardCheck, [&loop, connections] {
    const auto all = connections.lock();
    if (all == nullptr || all->closed()) return;
    for (const DramArena::Laggard& laggard : all->environment.arena->Laggards()) {
      all->Post(laggard.session, [all](LocalConnection& connection) {
        all->metrics.laggards.Add();
        connection.Close(DeadlineExceeded("local socket: unmap: not done (limit 1000 ms)"));
      });
    }
    WatchLaggards(loop, connections);
  });
}

}  // namespace kvfabric
