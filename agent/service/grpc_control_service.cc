#include "agent/service/grpc_control_service.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <set>
#include <utility>

#include "agent/service/control_codec.h"
#include "agent/service/control_fence.h"
#include "agent/service/grpc_status.h"
#include "agent/service/stream_outbox.h"
#include "api/grpc_tls.h"
#include "common/leash.h"
#include "common/log.h"
#include "kvfabric/v1/control.grpc.pb.h"

namespace kvfabric {

namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kMinHeartbeatMs = 10, kMaxHeartbeatMs = 60'000;
constexpr std::size_t kMaxQueued = 64;
using Reactor = grpc::ServerBidiReactor<v1::ControlDown, v1::ControlUp>;
using Outbox = StreamOutbox<Reactor, v1::ControlDown, v1::ControlUp>;

struct Shared {
  GrpcControlService::Options options;
  GrpcControlService::Environment environment;
  ControlFence fence;
  Leash leash;  // streams may outlive a refused task, tasks must not outlive the service
  Counter& orders;
  Counter& refused;
  Gauge& sessions;

  Shared(GrpcControlService::Options o, const GrpcControlService::Environment& e)
      : options(std::move(o)),
        environment(e),
        orders(e.metrics->GetCounter("kvfabric_agent_control_orders_total",
                                     "Orders of the operator that were taken")),
        refused(e.metrics->GetCounter("kvfabric_agent_control_refused_total",
                                      "Orders that were refused: old term or epoch, bad content")),
        sessions(
            e.metrics->GetGauge("kvfabric_agent_control_sessions", "Operator streams open now")) {}
};

void Finish(Outbox& outbox, const Status& status, bool drain) {
  outbox.Finish([status](Reactor& reactor) { reactor.Finish(ToGrpcStatus(status)); }, drain);
}

// One operator stream. Lives until OnDone; tasks share `Body`, which outlives it.
class Body : public std::enable_shared_from_this<Body> {
 public:
  Body(std::shared_ptr<Shared> shared, Reactor& reactor)
      : shared_(std::move(shared)), outbox_(reactor, kMaxQueued) {
    shared_->sessions.Add(1);
  }

  Outbox& outbox() { return outbox_; }
  void ReadNext() { outbox_.StartRead(&in_); }

  // On a gRPC thread: only enqueues.
  void OnRead(bool ok) {
    if (!ok) {
      Finish(outbox_, Status::Ok(), false);
      return;
    }
    const bool queued = shared_->environment.executor->Submit(
        shared_->leash.Bind([self = shared_from_this()] { self->Obey(); }));
    if (!queued) Finish(outbox_, Unavailable("control session: the agent is stopping"), false);
  }

  void OnDone() {
    outbox_.Detach();
    shared_->sessions.Add(-1);
    std::optional<ControlFence::Ticket> ticket;
    std::optional<Timer::Id> timer;
    {
      MutexLock lock(mu_);
      done_ = true;
      ticket = ticket_;
      timer = std::exchange(heartbeat_timer_, std::nullopt);
    }
    if (timer) shared_->environment.timer->Cancel(*timer);
    if (ticket) shared_->fence.Leave(*ticket);
  }

 private:
  // On the executor, one message at a time.
  void Obey() {
    const Status status = in_.has_hello() ? OnHello() : OnOrder();
    v1::ControlUp up;
    // An operator that is refused learns the term that its own Lease has reached here.
    up.set_acknowledged_term(in_.has_hello() ? shared_->fence.HighestTermOf(in_.hello().lease_uid())
                                             : shared_->fence.highest_term());
    if (status.ok()) {
      shared_->orders.Add();
      if (in_.has_hello()) FillHello(*up.mutable_hello());
      if (in_.has_ping()) up.mutable_pong()->set_sequence(in_.ping().sequence());
    } else {
      shared_->refused.Add();
      up.set_refused(status.message());
      LogWarn("control order refused", {{"reason", status.message()}, {"term", in_.term()}});
    }
    const bool sent = outbox_.Send(std::move(up));
    if (!sent || ends_session_) {
      Finish(outbox_,
             status.ok() ? ResourceExhausted("control session: replies are not read") : status,
             true);
      return;
    }
    if (status.ok() && in_.has_hello()) StartHeartbeats(in_.hello().heartbeat_ms());
    ReadNext();
  }

  Status OnHello() {
    ends_session_ = true;  // unless all is well
    if (ticket()) return InvalidArgument("control session: a second hello");
    const v1::ControlHello& hello = in_.hello();
    if (hello.version() != kVersion) {
      return Unimplemented("control session: version " + std::to_string(hello.version()) +
                           " (this agent speaks " + std::to_string(kVersion) + ")");
    }
    if (hello.heartbeat_ms() < kMinHeartbeatMs || hello.heartbeat_ms() > kMaxHeartbeatMs) {
      return InvalidArgument("control session: heartbeat_ms must be 10 to 60000 (is " +
                             std::to_string(hello.heartbeat_ms()) + ")");
    }
    const std::weak_ptr<Body> weak = weak_from_this();
    KVF_ASSIGN_OR_RETURN(const ControlFence::Ticket ticket,
                         shared_->fence.Enter({hello.lease_uid(), in_.term(), hello.operator_id()},
                                              [weak](const Status& why) {
                                                if (const auto self = weak.lock()) {
                                                  Finish(self->outbox_, why, false);
                                                }
                                              }));
    MutexLock lock(mu_);
    if (done_) {
      shared_->fence.Leave(ticket);
      return Cancelled("control session: gone");
    }
    ticket_ = ticket;
    ends_session_ = false;
    LogInfo(
        "operator connected",
        {{"operator", hello.operator_id()}, {"lease", hello.lease_uid()}, {"term", in_.term()}});
    return Status::Ok();
  }

  Status OnOrder() {
    const auto entered = ticket();
    if (!entered) {
      ends_session_ = true;
      return InvalidArgument("control session: the first message must be hello");
    }
    if (Status status = shared_->fence.Check(*entered, in_.term()); !status.ok()) {
      ends_session_ = status.code() == StatusCode::kAborted;
      return status;
    }
    ControlPlanePort& port = *shared_->environment.port;
    switch (in_.body_case()) {
      case v1::ControlDown::kPools: {
        KVF_ASSIGN_OR_RETURN(std::vector<PoolSpecForAgent> pools, DecodePoolSet(in_.pools()));
        NoteClearPools();
        return port.ApplyPools(in_.term(), std::move(pools));
      }
      case v1::ControlDown::kMap:
        return port.ApplyMap(in_.map().pool_uid(), in_.map().shard_map());
      case v1::ControlDown::kDrain:
        return in_.drain().draining()
                   ? port.StartDrain(in_.term(), std::chrono::seconds(in_.drain().deadline_s()))
                   : port.StopDrain(in_.term());
      case v1::ControlDown::kCertificate:
        return TakeCertificate();
      case v1::ControlDown::kPing:
        return Status::Ok();
      default:
        return Unimplemented("control session: unknown message (from a newer operator?)");
    }
  }

  Status TakeCertificate() {
    AgentCertificate* const own = shared_->environment.certificate;
    if (own == nullptr) {
      return FailedPrecondition(
          "certificate: this agent speaks in clear: set tls.bootstrapDir in its agent.yaml");
    }
    const v1::CertificateUpdate& update = in_.certificate();
    if (update.certificate().empty()) return own->Trust(update.trusted());
    KVF_RETURN_IF_ERROR(own->Install(update.certificate(), update.trusted()));
    if (shared_->environment.on_certificate) shared_->environment.on_certificate();
    return Status::Ok();
  }

  // Before the pools themselves: a new one must not be refused, nor one that is encrypted from now
  // on be served in clear.
  void NoteClearPools() {
    if (shared_->environment.clear_pools == nullptr) return;
    std::set<std::string> clear;
    for (const v1::PoolConfig& pool : in_.pools().pools()) {
      if (pool.clear_bulk()) clear.insert(pool.uid());
    }
    shared_->environment.clear_pools->Assign(std::move(clear));
  }

  void FillHello(v1::AgentHello& hello) const {
    const PeerIdentity identity = shared_->environment.port->identity();
    hello.set_node_name(identity.node_name);
    hello.set_agent_uid(identity.agent_uid);
    hello.set_boot_epoch(identity.boot_epoch);
    hello.set_version(shared_->options.version);
    hello.set_zone(shared_->options.zone);
  }

  void StartHeartbeats(std::uint32_t every_ms) {
    SendHeartbeat();
    const std::weak_ptr<Body> weak = weak_from_this();
    const Timer::Id timer =
        shared_->environment.timer->Every(std::chrono::milliseconds(every_ms), [weak] {
          const auto self = weak.lock();
          if (self == nullptr) return;
          // The next tick tries again when the queue is full.
          static_cast<void>(self->shared_->environment.executor->Submit(
              self->shared_->leash.Bind([self] { self->SendHeartbeat(); })));
        });
    MutexLock lock(mu_);
    if (done_) {
      shared_->environment.timer->Cancel(timer);
    } else {
      heartbeat_timer_ = timer;
    }
  }

  void SendHeartbeat() {
    if (outbox_.queued() > 0) return;  // the operator does not read: news can wait
    const ControlPlanePort& port = *shared_->environment.port;
    const AgentHealth health = shared_->options.health();
    v1::ControlUp up;
    up.set_acknowledged_term(shared_->fence.highest_term());
    v1::Heartbeat& heartbeat = *up.mutable_heartbeat();
    heartbeat.set_boot_epoch(port.identity().boot_epoch);
    heartbeat.set_recovering(health.recovering);
    heartbeat.set_ready(health.ready);
    heartbeat.set_not_ready_reason(health.not_ready_reason);
    heartbeat.set_arena_bytes(shared_->options.arena_bytes);
    EncodeReports(port.PoolReports(), port.DrainProgress(), heartbeat);
    AgentCertificate* const own = shared_->environment.certificate;
    if (own != nullptr) {
      const AgentCertificate::Report report = own->report();
      heartbeat.mutable_tls()->set_own_certificate(report.own);
      heartbeat.mutable_tls()->set_expires_s(report.expires_s);
      heartbeat.mutable_tls()->set_trusted(report.trusted);
    }
    outbox_.Send(std::move(up));
    if (own != nullptr) AskForCertificate(*own);
  }

  void AskForCertificate(AgentCertificate& own) {
    std::optional<std::string> request = own.RequestIfDue();
    if (!request) return;
    v1::ControlUp up;
    up.set_acknowledged_term(shared_->fence.highest_term());
    up.mutable_certificate_request()->set_request(std::move(*request));
    outbox_.Send(std::move(up));
  }

  std::optional<ControlFence::Ticket> ticket() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return ticket_;
  }

  const std::shared_ptr<Shared> shared_;
  Outbox outbox_;
  v1::ControlDown in_;         // by the reader, then by the one task that answers it
  bool ends_session_ = false;  // that task
  Mutex mu_;
  std::optional<ControlFence::Ticket> ticket_ GUARDED_BY(mu_);
  std::optional<Timer::Id> heartbeat_timer_ GUARDED_BY(mu_);
  bool done_ GUARDED_BY(mu_) = false;
};

class Stream final : public Reactor {
 public:
  explicit Stream(const std::shared_ptr<Shared>& shared)
      : body_(std::make_shared<Body>(shared, *this)) {
    body_->ReadNext();
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

class GrpcControlService::Service final : public v1::Control::CallbackService {
 public:
  explicit Service(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~Service() override { shared_->leash.Cut(); }

  Reactor* Session(grpc::CallbackServerContext* context) override {
    const Status refused = Authorize(*context);
    if (!refused.ok()) return new RefusedStream(refused);
    return new Stream(shared_);
  }

 private:
  Status Authorize(const grpc::CallbackServerContext& context) const {
    if (shared_->environment.certificate != nullptr) {
      using Role = CertificateIdentity::Role;
      const auto caller = CallerIdentity(context);
      if (!caller) return Unauthenticated("control session: needs the operator's certificate");
      if (caller->role == Role::kOperator || caller->role == Role::kAdmin) return Status::Ok();
      return PermissionDenied("control session: is the operator's alone (the caller is " +
                              caller->ToString() + ")");
    }
    const auto tenant = shared_->options.tenant_of_token(BearerToken(context));
    if (!tenant) return Unauthenticated("control session: unknown token");
    if (*tenant == kAdminTenant) return Status::Ok();
    return PermissionDenied("control session: needs the admin token (is " + *tenant + "'s)");
  }

  const std::shared_ptr<Shared> shared_;
};

GrpcControlService::GrpcControlService(Options options, const Environment& environment)
    : service_(
          std::make_unique<Service>(std::make_shared<Shared>(std::move(options), environment))) {}

GrpcControlService::~GrpcControlService() = default;

grpc::Service& GrpcControlService::service() { return *service_; }

}  // namespace kvfabric
