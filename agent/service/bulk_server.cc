#include "agent/service/bulk_server.h"

#include <sys/random.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "agent/service/bulk_messages.h"
#include "common/check.h"
#include "common/log.h"
#include "common/mutex.h"
#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

constexpr std::chrono::milliseconds kJoinTimeout{5'000};

struct ServerMetrics {
  Counter& sent_bytes;
  Counter& received_bytes;
  Counter& faults;
  Counter& checksum_mismatches;
  Gauge& connections;

  explicit ServerMetrics(MetricsRegistry& registry)
      : sent_bytes(registry.GetCounter("kvfabric_agent_bulk_bytes_total",
                                       "Block bytes between agents", {{"direction", "sent"}})),
        received_bytes(registry.GetCounter("kvfabric_agent_bulk_bytes_total",
                                           "Block bytes between agents",
                                           {{"direction", "received"}})),
        faults(registry.GetCounter("kvfabric_agent_bulk_faults_total",
                                   "Bulk connections that spoke wrongly and were closed")),
        checksum_mismatches(registry.GetCounter(
            "kvfabric_agent_bulk_checksum_mismatches_total",
            "Blocks that arrived from a peer with another checksum and were thrown away")),
        connections(registry.GetGauge("kvfabric_agent_bulk_connections",
                                      "Bulk connections of peers open now")) {}
};

bool SpokeWrongly(const Status& why) {
  return why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kUnimplemented ||
         why.code() == StatusCode::kResourceExhausted ||
         why.code() == StatusCode::kUnauthenticated ||
         why.code() == StatusCode::kPermissionDenied || why.code() == StatusCode::kDataLoss;
}

}  // namespace

struct BulkServer::Shared {
  struct Session {
    PeerHandler::SessionId id = 0;
    std::string identity;  // empty = whoever has the token
    std::vector<std::weak_ptr<FrameConnection>> connections;
  };

  const Options options;
  const Environment environment;
  ServerMetrics metrics;

  mutable Mutex mu;
  std::unordered_map<std::string, Session> sessions GUARDED_BY(mu);
  std::unordered_map<const FrameConnection*, std::weak_ptr<FrameConnection>> open GUARDED_BY(mu);
  std::size_t next_loop GUARDED_BY(mu) = 0;
  bool stopping GUARDED_BY(mu) = false;

  Shared(Options o, Environment e)
      : options(std::move(o)), environment(std::move(e)), metrics(*environment.metrics) {}

  // False when there is no room.
  bool Register(const std::shared_ptr<FrameConnection>& connection) EXCLUDES(mu) {
    MutexLock lock(mu);
    if (stopping || open.size() >= options.max_connections) return false;
    open.emplace(connection.get(), connection);
    metrics.connections.Add(1);
    return true;
  }
  void Forget(const FrameConnection* connection) EXCLUDES(mu) {
    MutexLock lock(mu);
    if (open.erase(connection) > 0) metrics.connections.Add(-1);
  }
  std::optional<PeerHandler::SessionId> Join(const std::string& token,
                                             const std::shared_ptr<FrameConnection>& connection)
      EXCLUDES(mu) {
    MutexLock lock(mu);
    const auto found = sessions.find(token);
    if (found == sessions.end()) return std::nullopt;
    if (connection->encrypted() && !found->second.identity.empty() &&
        connection->peer_identity() != found->second.identity) {
      return std::nullopt;
    }
    auto& joined = found->second.connections;
    std::erase_if(joined, [](const auto& weak) { return weak.expired(); });
    joined.push_back(connection);
    return found->second.id;
  }
};

// One connection, on its loop.
class BulkServer::Connection final : public FrameHandler {
 public:
  Connection(std::shared_ptr<Shared> shared, std::string peer)
      : shared_(std::move(shared)), peer_(std::move(peer)) {}

  void Attach(const std::shared_ptr<FrameConnection>& connection) {
    connection_ = connection.get();
  }

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    if (!session_) return OnFirstFrame(frame);
    switch (frame.header.op) {
      case FrameOp::kPeerFetch:
        return OnFetch(frame);
      case FrameOp::kPeerPush:
        return OnPush(frame, parts);
      default:
        return InvalidArgument("bulk connection: unknown operation " +
                               std::to_string(static_cast<int>(frame.header.op)));
    }
  }

  Status OnPayload(const std::vector<std::uint64_t>& checksums) override {
    shared_->metrics.received_bytes.Add(static_cast<double>(push_.payload_bytes));
    if (!reservation_) return Status::Ok();  // refused already
    Reservation reservation = std::move(*reservation_);
    reservation_.reset();
    const Result<PinnedBlock> committed = std::move(reservation).Commit(checksums.at(0));
    if (committed.status().code() == StatusCode::kDataLoss) {
      shared_->metrics.checksum_mismatches.Add();
    }
    Answer(push_, committed.status());
    return Status::Ok();
  }

  void OnClosed(const Status& why) override {
    reservation_.reset();  // nothing of it was visible
    if (SpokeWrongly(why)) {
      shared_->metrics.faults.Add();
      LogWarn("bulk connection closed", {{"peer", peer_}, {"reason", why.message()}});
    }
    shared_->Forget(connection_);
    connection_ = nullptr;
  }

 private:
  Status OnFirstFrame(const ReceivedFrame& frame) {
    if (frame.header.op != FrameOp::kJoin) {
      if (!shared_->options.on_client) {
        return InvalidArgument("bulk connection: the first frame must be a join");
      }
      const std::shared_ptr<FrameConnection> connection = connection_->shared_from_this();
      connection->SetIdleTimeout(std::chrono::milliseconds(0));
      shared_->Forget(connection_);  // the new handler counts it
      return shared_->options.on_client(*connection, frame);
    }
    if (frame.header.payload_bytes != 0 || frame.body.size() != kBulkTokenBytes) {
      return InvalidArgument("bulk connection: join: the token must be 16 bytes");
    }
    session_ = shared_->Join(std::string(AsText(frame.body)), connection_->shared_from_this());
    if (!session_) {
      return Unauthenticated("bulk connection: join: unknown token: open a peer session first");
    }
    connection_->SetIdleTimeout(std::chrono::milliseconds(0));  // lives as long as the session
    Answer(frame.header, Status::Ok());
    return Status::Ok();
  }

  Status CheckEncryption(const std::string& pool_uid) const {
    BulkTls* const tls = shared_->options.tls;
    if (tls == nullptr || connection_->encrypted() || tls->MayTravelInClear(pool_uid)) {
      return Status::Ok();
    }
    return PermissionDenied("bulk connection: in clear, but pool " + pool_uid +
                            " travels encrypted only (spec.security.transport)");
  }

  Status OnFetch(const ReceivedFrame& frame) {
    if (frame.header.payload_bytes != 0) return InvalidArgument("bulk fetch: with a payload");
    KVF_ASSIGN_OR_RETURN(const BulkFetch fetch, DecodeBulkFetch(frame.body));
    KVF_RETURN_IF_ERROR(CheckEncryption(fetch.pool_uid));
    const Clock::TimePoint now = shared_->environment.clock->Now();
    for (std::size_t i = 0; i < fetch.ids.size(); ++i) {
      OutgoingFrame reply;
      reply.header.op = FrameOp::kPeerFetch;
      reply.header.flags = kFrameReply;
      if (i + 1 < fetch.ids.size()) reply.header.flags |= kFrameMore;
      reply.header.request_id = frame.header.request_id;
      std::optional<PinnedBlock> block = shared_->environment.handler->OnFetch(
          *session_, fetch.pool_uid, fetch.lease_id, fetch.ids[i]);
      if (!block) {
        reply.header.status = StatusCode::kNotFound;
      } else {
        const auto pinned = std::make_shared<const PinnedBlock>(std::move(*block));
        reply.body = EncodeBlockHeader(pinned->header(), now);
        reply.header.payload_checksum = pinned->header().checksum;
        reply.payload.push_back(pinned->bytes());
        reply.payload_owner = pinned;
        shared_->metrics.sent_bytes.Add(static_cast<double>(pinned->bytes().size()));
      }
      if (connection_ == nullptr) return Cancelled("bulk fetch: the connection broke");
      connection_->Send(std::move(reply));
    }
    return Status::Ok();
  }

  // A push that cannot be taken is read to its end and answered; the connection goes on.
  Status OnPush(const ReceivedFrame& frame, std::vector<PayloadPart>& parts) {
    KVF_ASSIGN_OR_RETURN(BulkPush push,
                         DecodeBulkPush(frame.body, shared_->environment.clock->Now()));
    KVF_RETURN_IF_ERROR(CheckEncryption(push.pool_uid));
    if (frame.header.payload_bytes == 0 || push.header.length_bytes != frame.header.payload_bytes ||
        push.header.checksum != frame.header.payload_checksum) {
      return InvalidArgument("bulk push: length or checksum of header and frame differ");
    }
    push_ = frame.header;
    Result<Reservation> reservation = shared_->environment.handler->OnPush(
        *session_, push.pool_uid, push.reason, std::move(push.header));
    if (!reservation.ok()) {
      Answer(push_, reservation.status());
      return Status::Ok();
    }
    if (reservation->bytes().size() != frame.header.payload_bytes) {
      Answer(push_, Internal("bulk push: reservation of another size"));
      return Status::Ok();
    }
    reservation_ = std::move(*reservation);
    parts.push_back({reservation_->bytes().data(), reservation_->bytes().size()});
    return Status::Ok();
  }

  void Answer(const FrameHeader& request, const Status& status) {
    OutgoingFrame reply;
    reply.header.op = request.op;
    reply.header.flags = kFrameReply;
    reply.header.request_id = request.request_id;
    reply.header.status = status.code();
    if (!status.ok()) reply.body = status.message();
    if (connection_ != nullptr) connection_->Send(std::move(reply));
  }

  const std::shared_ptr<Shared> shared_;
  const std::string peer_;                 // its address
  FrameConnection* connection_ = nullptr;  // null before it is attached and once closed
  std::optional<PeerHandler::SessionId> session_;
  FrameHeader push_;                        // of the payload being received
  std::optional<Reservation> reservation_;  // where it goes; none = thrown away
};

namespace {

std::unique_ptr<Stream> StreamOver(UniqueFd fd, const std::string& peer, BulkTls* tls) {
  if (tls == nullptr) return std::make_unique<PlainStream>(std::move(fd), peer);
  const std::shared_ptr<const TlsContext> context = tls->Context();
  if (context == nullptr || !ConfigureSocket(fd.get(), true).ok()) return nullptr;
  return context->AcceptEither(std::move(fd), peer);
}

// Starts one accepted connection on its loop.
template <typename Handler, typename Shared>
void StartConnection(const std::shared_ptr<Shared>& shared, EventLoop& loop,
                     const std::shared_ptr<UniqueFd>& fd, const std::string& peer) {
  auto handler = std::make_shared<Handler>(shared, peer);
  FrameConnection::Options options;
  options.idle_timeout = kJoinTimeout;
  std::unique_ptr<Stream> stream = StreamOver(std::move(*fd), peer, shared->options.tls);
  if (stream == nullptr) return;  // BulkTls has said why
  auto connection = FrameConnection::Start(loop, std::move(stream), options, handler);
  if (!connection.ok()) {
    LogWarn("bulk connection refused", {{"peer", peer}, {"reason", connection.status().message()}});
    return;
  }
  if ((*connection)->closed()) return;  // its hand-shake failed at once
  handler->Attach(*connection);
  if (!shared->Register(*connection)) {
    (*connection)->Close(ResourceExhausted("bulk connection: too many are open"));
  }
}

}  // namespace

Result<std::unique_ptr<BulkServer>> BulkServer::Listen(Options options, Environment environment) {
  KVF_CHECK(!environment.loops.empty(), "bulk needs an event loop");
  KVF_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::Tcp(options.host, options.port));
  auto shared = std::make_shared<Shared>(std::move(options), std::move(environment));
  std::unique_ptr<BulkServer> server(new BulkServer(shared));
  const auto on_accept = [shared](UniqueFd fd, std::string peer) {
    EventLoop* loop = nullptr;
    {
      MutexLock lock(shared->mu);
      if (shared->stopping) return;
      loop = shared->environment.loops[shared->next_loop++ % shared->environment.loops.size()];
    }
    const auto owned = std::make_shared<UniqueFd>(std::move(fd));
    // A full loop takes no more: the descriptor closes with its last owner.
    static_cast<void>(loop->Submit([shared, loop, owned, peer = std::move(peer)] {
      StartConnection<Connection>(shared, *loop, owned, peer);
    }));
  };
  Result<std::unique_ptr<Listener>> listener =
      Listener::Listen(*shared->environment.loops.front(), {.address = address}, on_accept);
  if (!listener.ok()) return listener.status().WithContext("bulk server");
  server->listener_ = std::move(*listener);
  return server;
}

BulkServer::BulkServer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

BulkServer::~BulkServer() {
  listener_.reset();
  std::vector<std::shared_ptr<FrameConnection>> open;
  {
    MutexLock lock(shared_->mu);
    shared_->stopping = true;
    shared_->sessions.clear();
    for (const auto& entry : shared_->open) {
      if (auto connection = entry.second.lock()) open.push_back(std::move(connection));
    }
  }
  for (const auto& connection : open) {
    connection->loop().RunSync([&] { connection->Close(Cancelled("bulk server: stopping")); });
  }
  // Connections accepted before have started when this returns, and found the server stopping.
  for (EventLoop* loop : shared_->environment.loops) loop->RunSync([] {});
}

std::uint16_t BulkServer::port() const { return listener_->address().port(); }

std::string BulkServer::AddSession(PeerHandler::SessionId session, std::string identity) {
  std::string token(kBulkTokenBytes, '\0');
  KVF_CHECK(::getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()),
            "no random numbers");
  MutexLock lock(shared_->mu);
  shared_->sessions[token] = {session, std::move(identity), {}};
  return token;
}

void BulkServer::EndSession(const std::string& token) {
  std::vector<std::weak_ptr<FrameConnection>> connections;
  {
    MutexLock lock(shared_->mu);
    const auto found = shared_->sessions.find(token);
    if (found == shared_->sessions.end()) return;
    connections = std::move(found->second.connections);
    shared_->sessions.erase(found);
  }
  for (const auto& weak : connections) {
    const std::shared_ptr<FrameConnection> connection = weak.lock();
    if (connection == nullptr) continue;
    // Refused only when the loop stops, which closes it too.
    static_cast<void>(connection->loop().Submit(
        [connection] { connection->Close(Cancelled("bulk connection: its session ended")); }));
  }
}

std::size_t BulkServer::connections() const {
  MutexLock lock(shared_->mu);
  return shared_->open.size();
}

}  // namespace kvfabric
