#include "agent/service/grpc_peer_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "agent/service/grpc_status.h"
#include "agent/service/peer_codec.h"
#include "agent/service/serial_queue.h"
#include "agent/service/stream_outbox.h"
#include "api/grpc_tls.h"
#include "common/leash.h"
#include "common/log.h"
#include "kvfabric/v1/peer.grpc.pb.h"

namespace kvfabric {

namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::chrono::milliseconds kDefaultBudget{1'000}, kLongestBudget{60'000};
constexpr std::size_t kMaxKeepalives = 65'536;

using Reactor = grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerReply>;
using Outbox = StreamOutbox<Reactor, v1::PeerRequest, v1::PeerReply>;
using RequestRef = std::shared_ptr<const v1::PeerRequest>;

class Body;

struct Shared {
  GrpcPeerService::Options options;
  GrpcPeerService::Environment environment;
  std::atomic<bool> serving = false;  // relaxed: late by one call does no harm
  Counter& requests;
  Counter& refused;
  Gauge& open;
  Leash leash;
  WorkerPool keepalives{"keepalive", 1, kMaxKeepalives};

  mutable Mutex mu;
  std::map<const Body*, std::weak_ptr<Body>> bodies GUARDED_BY(mu);

  Shared(GrpcPeerService::Options o, const GrpcPeerService::Environment& e)
      : options(std::move(o)),
        environment(e),
        requests(e.metrics->GetCounter("kvfabric_agent_peer_requests_total",
                                       "Requests of peers, keepalives not counted")),
        refused(e.metrics->GetCounter("kvfabric_agent_peer_refused_total",
                                      "Requests of peers that were malformed or too many")),
        open(e.metrics->GetGauge("kvfabric_agent_peer_sessions",
                                 "Sessions that peers have open to this agent")) {}
};

void Finish(Outbox& outbox, const Status& status, bool drain) {
  outbox.Finish([status](Reactor& reactor) { reactor.Finish(ToGrpcStatus(status)); }, drain);
}

// One session. Lives until its stream is done and the last answer has been given.
class Body : public std::enable_shared_from_this<Body> {
 public:
  // `proven`: the node whose certificate the caller has; nullopt where tokens are enough.
  Body(std::shared_ptr<Shared> shared, Reactor& reactor, std::optional<std::string> proven)
      : shared_(std::move(shared)),
        proven_(std::move(proven)),
        outbox_(reactor, shared_->options.max_replies),
        queue_(std::make_shared<SerialQueue>(*shared_->environment.executor,
                                             shared_->options.max_waiting)),
        last_heard_(shared_->environment.clock->Now()) {}

  Outbox& outbox() { return outbox_; }

  void Begin() {
    {
      MutexLock lock(shared_->mu);
      shared_->bodies.emplace(this, weak_from_this());
    }
    shared_->open.Add(1);
    ReadNext();
  }

  // On a gRPC thread: only enqueues.
  void OnRead(bool ok) {
    if (!ok) {
      Finish(outbox_, Status::Ok(), false);
      return;
    }
    last_heard_.store(shared_->environment.clock->Now(), std::memory_order_relaxed);
    const auto request = std::make_shared<const v1::PeerRequest>(std::move(in_));
    in_.Clear();
    if (request->has_keepalive()) {
      static_cast<void>(
          shared_->keepalives.Submit(Bound([request](Body& self) { self.OnKeepalive(*request); })));
    } else if (!queue_->Submit(Bound([request](Body& self) { self.OnRequest(request); }))) {
      shared_->refused.Add();
      Refuse(*request, ResourceExhausted("peer session: too many requests wait: ask less"));
    }
    ReadNext();
  }

  void OnDone() {
    outbox_.Detach();
    {
      MutexLock lock(shared_->mu);
      shared_->bodies.erase(this);
    }
    shared_->open.Add(-1);
    queue_->SubmitLast(Bound([](Body& self) { self.Close(); }));  // behind what was asked before
  }

  void EndIfSilent(Clock::TimePoint now) {
    const auto silent = now - last_heard_.load(std::memory_order_relaxed);
    if (silent > shared_->options.silence) {
      Finish(outbox_, DeadlineExceeded("peer session: silent for too long"), false);
    }
  }

 private:
  template <typename F>
  Task Bound(F run) {
    return shared_->leash.Bind([self = shared_from_this(), run] { run(*self); });
  }
  void Close() {
    const auto session = std::exchange(session_, std::nullopt);
    if (!session) return;
    shared_->environment.bulk->EndSession(token_);
    shared_->environment.handler->OnSessionClosed(*session);
    LogInfo("peer session closed", {{"peer", peer_name_}});
  }

  void ReadNext() { outbox_.StartRead(&in_); }

  void Send(v1::PeerReply reply, bool urgent = false) {
    if (!outbox_.Send(std::move(reply), urgent) && !outbox_.ended()) {
      Finish(outbox_, ResourceExhausted("peer session: replies are not read"), false);
    }
  }
  void Refuse(const v1::PeerRequest& request, const Status& status) {
    if (request.request_id() == 0) return;
    v1::PeerReply reply;
    reply.set_request_id(request.request_id());
    reply.set_code(static_cast<std::uint32_t>(status.code()));
    reply.set_message(status.message());
    if (status.code() == StatusCode::kAborted) {  // a stale epoch: only these two name one
      const std::string& pool_uid =
          request.has_locate() ? request.locate().pool_uid() : request.announce().pool_uid();
      reply.set_map_epoch(shared_->environment.handler->MapEpoch(pool_uid));
    }
    Send(std::move(reply));
  }
  // Encodes a handler's answer into the field that `field` gives.
  template <typename Answer, typename Field>
  void Reply(const v1::PeerRequest& request, const Result<Answer>& answer, Field field) {
    if (!answer.ok()) {
      Refuse(request, answer.status());
      return;
    }
    v1::PeerReply reply;
    reply.set_request_id(request.request_id());
    Encode(*answer, *field(reply));
    Send(std::move(reply));
  }

  // On the keepalive thread.
  void OnKeepalive(const v1::PeerRequest& request) {
    const std::uint64_t session = keepalive_session_.load(std::memory_order_acquire);
    if (session == 0) return;  // before the hello was answered
    v1::PeerReply reply;
    reply.set_request_id(request.request_id());
    Encode(shared_->environment.handler->OnKeepalive(session - 1), *reply.mutable_keepalive());
    Send(std::move(reply), true);
  }

  // On the executor, one at a time.
  void OnRequest(const RequestRef& request) {
    if (request->has_hello()) {
      if (const Status status = OnHello(*request); !status.ok()) {
        shared_->refused.Add();
        Refuse(*request, status);
        Finish(outbox_, status, true);
      }
      return;
    }
    if (!session_) {
      shared_->refused.Add();
      Finish(outbox_, InvalidArgument("peer session: the first message must be hello"), false);
      return;
    }
    shared_->requests.Add();
    if (const Status status = Dispatch(request); !status.ok()) {
      shared_->refused.Add();  // malformed, or unknown here
      Refuse(*request, status);
    }
  }

  Status OnHello(const v1::PeerRequest& request) {
    const v1::PeerHello& hello = request.hello();
    const PeerIdentity& self = shared_->options.self;
    if (session_) return InvalidArgument("peer session: a second hello");
    if (hello.version() != kVersion) {
      return Unimplemented("peer session: version " + std::to_string(hello.version()) +
                           " (this agent speaks " + std::to_string(kVersion) + ")");
    }
    if (hello.expect_node_name() != self.node_name ||
        (!hello.expect_agent_uid().empty() && hello.expect_agent_uid() != self.agent_uid)) {
      return NotFound("peer session: this is agent " + self.node_name + " (" + self.agent_uid +
                      "), not " + hello.expect_node_name() + " (" + hello.expect_agent_uid() + ")");
    }
    if (hello.node_name().empty() || hello.agent_uid().empty()) {
      return InvalidArgument("peer session: hello without an identity");
    }
    if (proven_ && *proven_ != hello.node_name()) {
      return PermissionDenied("peer session: says it is " + hello.node_name() +
                              ", its certificate is that of " + *proven_);
    }
    session_ = shared_->environment.handler->OnSessionOpen(
        {hello.node_name(), hello.agent_uid(), hello.boot_epoch()});
    token_ = shared_->environment.bulk->AddSession(
        *session_, proven_ ? CertificateIdentity::Agent(*proven_).ToString() : std::string());
    peer_name_ = hello.node_name();
    keepalive_session_.store(*session_ + 1, std::memory_order_release);
    LogInfo("peer session opened", {{"peer", peer_name_}, {"boot_epoch", hello.boot_epoch()}});
    v1::PeerReply reply;
    reply.set_request_id(request.request_id());
    reply.mutable_hello()->set_boot_epoch(self.boot_epoch);
    reply.mutable_hello()->set_bulk_token(token_);
    reply.mutable_hello()->set_bulk_port(shared_->environment.bulk->port());
    Send(std::move(reply));
    return Status::Ok();
  }

  Status Dispatch(const RequestRef& request) {
    PeerHandler& handler = *shared_->environment.handler;
    switch (request->body_case()) {
      case v1::PeerRequest::kAnnounce: {
        KVF_ASSIGN_OR_RETURN(const AnnounceRequest announce, Decode(request->announce()));
        Reply(*request, handler.OnAnnounce(*session_, announce),
              [](v1::PeerReply& reply) { return reply.mutable_announce(); });
        return Status::Ok();
      }
      case v1::PeerRequest::kLocate: {
        KVF_ASSIGN_OR_RETURN(LocateRequest locate, Decode(request->locate()));
        handler.OnLocate(*session_, std::move(locate), DeadlineOf(*request),
                         [self = shared_from_this(), request](const Result<LocateReply>& answer) {
                           self->Reply(*request, answer,
                                       [](v1::PeerReply& reply) { return reply.mutable_locate(); });
                         });
        return Status::Ok();
      }
      case v1::PeerRequest::kLease: {
        KVF_ASSIGN_OR_RETURN(const LeaseRequest lease, Decode(request->lease()));
        Reply(*request, handler.OnLease(*session_, lease),
              [](v1::PeerReply& reply) { return reply.mutable_lease(); });
        return Status::Ok();
      }
      case v1::PeerRequest::kRelease: {
        const auto& ids = request->release().lease_ids();
        handler.OnRelease(*session_, {ids.begin(), ids.end()});
        return Status::Ok();
      }
      case v1::PeerRequest::kOffer: {
        KVF_ASSIGN_OR_RETURN(const OfferRequest offer, Decode(request->offer()));
        Reply(*request, handler.OnOffer(*session_, offer),
              [](v1::PeerReply& reply) { return reply.mutable_offer(); });
        return Status::Ok();
      }
      case v1::PeerRequest::kDelete: {
        KVF_ASSIGN_OR_RETURN(const DeleteAtPeerRequest erase, Decode(request->delete_()));
        v1::PeerReply reply;
        reply.set_request_id(request->request_id());
        reply.mutable_delete_()->set_deleted(handler.OnDelete(*session_, erase));
        Send(std::move(reply));
        return Status::Ok();
      }
      case v1::PeerRequest::kMap: {
        v1::PeerReply reply;
        reply.set_request_id(request->request_id());
        reply.mutable_map()->set_shard_map(
            handler.OnMapRequest(*session_, request->map().pool_uid()));
        Send(std::move(reply));
        return Status::Ok();
      }
      default:
        return Unimplemented("peer session: unknown request (from a newer agent?)");
    }
  }

  Deadline DeadlineOf(const v1::PeerRequest& request) const {
    const std::chrono::milliseconds budget =
        request.remaining_ms() == 0
            ? kDefaultBudget
            : std::min(std::chrono::milliseconds(request.remaining_ms()), kLongestBudget);
    return Deadline::After(*shared_->environment.clock, budget);
  }

  const std::shared_ptr<Shared> shared_;
  const std::optional<std::string> proven_;
  Outbox outbox_;
  const std::shared_ptr<SerialQueue> queue_;
  v1::PeerRequest in_;                        // the stream's reactions only
  std::atomic<Clock::TimePoint> last_heard_;  // relaxed: only compared with a long time
  // Session id + 1, 0 = none: released by hello, acquired by the keepalive thread.
  std::atomic<std::uint64_t> keepalive_session_ = 0;

  // Tasks of the queue only.
  std::optional<PeerHandler::SessionId> session_;
  std::string token_;
  std::string peer_name_;
};

class AnsweringStream final : public Reactor {
 public:
  AnsweringStream(const std::shared_ptr<Shared>& shared, std::optional<std::string> proven)
      : body_(std::make_shared<Body>(shared, *this, std::move(proven))) {
    body_->Begin();
  }

 private:
  void OnReadDone(bool ok) override { body_->OnRead(ok); }
  void OnWriteDone(bool ok) override { body_->outbox().OnWriteDone(ok); }
  void OnCancel() override {}  // the read fails
  void OnDone() override {
    body_->OnDone();
    delete this;
  }

  const std::shared_ptr<Body> body_;
};

class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const Status& why) { Finish(ToGrpcStatus(why)); }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

class GrpcPeerService::Service final : public v1::Peer::CallbackService {
 public:
  explicit Service(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        silence_timer_(
            shared_->environment.timer->Every(std::chrono::seconds(1), [this] { EndSilent(); })) {}
  ~Service() override {
    shared_->environment.timer->CancelAndWait(silence_timer_);
    shared_->leash.Cut();
    shared_->keepalives.Shutdown();
  }

  void SetServing(bool serving) { shared_->serving.store(serving, std::memory_order_relaxed); }
  std::size_t sessions() const {
    MutexLock lock(shared_->mu);
    return shared_->bodies.size();
  }

  Reactor* Session(grpc::CallbackServerContext* context) override {
    if (!shared_->serving.load(std::memory_order_relaxed)) {
      return new RefusedStream(Unavailable("peer session: this agent does not serve yet"));
    }
    Result<std::optional<std::string>> proven = Authorize(*context);
    if (!proven.ok()) return new RefusedStream(proven.status());
    return new AnsweringStream(shared_, std::move(*proven));
  }

 private:
  // The node that the caller proved to be.
  Result<std::optional<std::string>> Authorize(const grpc::CallbackServerContext& context) const {
    if (shared_->options.certificates) {
      const auto caller = CallerIdentity(context);
      if (!caller) return Unauthenticated("peer session: needs an agent's certificate");
      if (caller->role != CertificateIdentity::Role::kAgent) {
        return PermissionDenied("peer session: is for agents (the caller is " + caller->ToString() +
                                ")");
      }
      return std::optional<std::string>(caller->name);
    }
    const auto tenant = shared_->options.tenant_of_token(BearerToken(context));
    if (!tenant) return Unauthenticated("peer session: unknown token");
    if (*tenant == kAdminTenant) return std::optional<std::string>();
    return PermissionDenied("peer session: needs the admin token (is " + *tenant + "'s)");
  }

  void EndSilent() {
    std::vector<std::shared_ptr<Body>> bodies;
    {
      MutexLock lock(shared_->mu);
      for (const auto& entry : shared_->bodies) {
        if (auto body = entry.second.lock()) bodies.push_back(std::move(body));
      }
    }
    const Clock::TimePoint now = shared_->environment.clock->Now();
    for (const auto& body : bodies) body->EndIfSilent(now);
  }

  const std::shared_ptr<Shared> shared_;
  const Timer::Id silence_timer_;
};

GrpcPeerService::GrpcPeerService(Options options, const Environment& environment)
    : service_(
          std::make_unique<Service>(std::make_shared<Shared>(std::move(options), environment))) {}

GrpcPeerService::~GrpcPeerService() = default;

grpc::Service& GrpcPeerService::service() { return *service_; }
void GrpcPeerService::SetServing(bool serving) { service_->SetServing(serving); }
std::size_t GrpcPeerService::sessions() const { return service_->sessions(); }

}  // namespace kvfabric
