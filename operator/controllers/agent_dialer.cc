#include "operator/controllers/agent_dialer.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <optional>
#include <utility>

#include "api/grpc_tls.h"
#include "kvfabric/v1/control.grpc.pb.h"

namespace kvfabric {

namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxRefusalBytes = 1024;
constexpr std::size_t kMaxRequestBytes = 16'384;

AgentReport DecodeReport(const v1::Heartbeat& from) {
  AgentReport out;
  out.boot_epoch = from.boot_epoch();
  out.recovering = from.recovering();
  out.ready = from.ready();
  out.not_ready_reason = from.not_ready_reason();
  out.arena_bytes = from.arena_bytes();
  for (const v1::PoolHeartbeat& pool : from.pools()) {
    out.pools.push_back({pool.uid(), pool.applied_term(), pool.applied_epoch(),
                         pool.applied_generation(), pool.capacity_bytes(), pool.used_bytes(),
                         pool.blocks(), pool.hit_blocks(), pool.lookup_blocks(),
                         pool.under_replicated()});
  }
  const v1::DrainProgress& drain = from.drain();
  out.drain = {drain.active(),      drain.done(),           drain.moved_blocks(),
               drain.moved_bytes(), drain.dropped_blocks(), drain.remaining_blocks()};
  if (from.has_tls()) {
    out.tls = {from.tls().own_certificate(), from.tls().expires_s(), from.tls().trusted()};
  }
  return out;
}

void EncodePool(const AgentPoolConfig& from, v1::PoolConfig* to) {
  to->set_uid(from.uid);
  to->set_name(from.name);
  to->set_generation(from.generation);
  to->set_dram_capacity_bytes(from.dram_capacity_bytes);
  to->set_high_watermark_percent(from.high_watermark_percent);
  to->set_low_watermark_percent(from.low_watermark_percent);
  to->set_eviction_policy(from.eviction_policy);
  to->set_slots(from.slots);
  to->set_replicas(from.replicas);
  to->set_acks_replicated(from.acks_replicated);
  to->set_locality_spread(from.locality_spread);
  for (const AgentTenantConfig& tenant : from.tenants) {
    v1::TenantConfig* out = to->add_tenants();
    out->set_name(tenant.name);
    out->set_dram_quota_bytes(tenant.dram_quota_bytes);
  }
  to->set_bandwidth_limit_bytes_per_s(from.bandwidth_limit_bytes_per_s);
  to->set_drain_timeout_s(static_cast<std::uint32_t>(from.drain_timeout.count()));
  to->set_lookup_deadline_ms(static_cast<std::uint32_t>(from.lookup_deadline.count()));
  to->set_paused(from.paused);
  to->set_clear_bulk(from.clear_bulk);
}

// An agent that has no certificate of its own yet answers with the one all agents start with.
std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const AgentTarget& target,
                                                         const TlsSource& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  return MakeChannelCredentials(*tls(), {CertificateIdentity::Agent(target.node_name),
                                         {CertificateIdentity::Role::kBootstrap, ""}});
}

// Both enums have gRPC's seventeen codes.
Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Unavailable("control session: the agent ended it");
  return {static_cast<StatusCode>(status.error_code()), status.error_message()};
}

// One stream. Kept alive by itself until OnDone; the hold stands for the link, so that writes may
// be started from its thread.
class Stream final : public grpc::ClientBidiReactor<v1::ControlDown, v1::ControlUp>,
                     public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<AgentStreams> shared, const AgentTarget& target,
         AgentDialer::Session session, std::shared_ptr<AgentLinkListener> listener)
      : shared_(std::move(shared)), session_(std::move(session)), listener_(std::move(listener)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Each dial connects now; the pace of dialling is the registry's.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Control::NewStub(grpc::CreateCustomChannel(
        target.ToString(), CredentialsFor(target, shared_->tls), arguments));
    if (!shared_->tls) context_.AddMetadata("authorization", "Bearer " + shared_->admin_token);
  }

  void Start() {
    std::vector<std::shared_ptr<void>> ended;  // goes here, on the dialling thread
    {
      MutexLock lock(shared_->mu);
      ++shared_->open;
      ended.swap(shared_->ended);
    }
    self_ = this->shared_from_this();
    stub_->async()->Session(&context_, this);
    this->AddHold();
    MutexLock lock(mu_);
    v1::ControlHello* hello = hello_.emplace().mutable_hello();
    hello->set_version(kVersion);
    hello->set_operator_id(session_.operator_id);
    hello->set_lease_uid(session_.lease_uid);
    hello->set_heartbeat_ms(static_cast<std::uint32_t>(session_.heartbeat.count()));
    this->StartRead(&in_);
    WriteNext();
    this->StartCall();
  }

  void Send(std::optional<v1::ControlDown> pools, std::optional<v1::ControlDown> drain)
      EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (pools.has_value()) pools_ = std::move(pools);
    if (drain.has_value()) drain_ = std::move(drain);
    WriteNext();
  }
  void SendCertificate(v1::ControlDown certificate) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    // A bundle alone does not take the place of a certificate that waits, which has one too.
    const bool alone = certificate.certificate().certificate().empty();
    if (!alone || !certificate_.has_value()) certificate_ = std::move(certificate);
    WriteNext();
  }
  void SendMap(const std::string& pool_uid, v1::ControlDown map) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    maps_[pool_uid] = std::move(map);
    WriteNext();
  }

  // The link is gone: nobody is told anything any more.
  void Abandon() EXCLUDES(mu_, listener_mu_) {
    {
      MutexLock lock(listener_mu_);
      listener_.reset();
    }
    context_.TryCancel();
    MutexLock lock(mu_);
    ReleaseHold();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      MutexLock lock(mu_);
      ReleaseHold();
      return;
    }
    Tell();
    in_.Clear();
    this->StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    if (ok) {
      WriteNext();
    } else {
      ReleaseHold();
    }
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(listener_mu_);
      if (listener_ != nullptr) listener_->OnClosed(FromGrpc(status));
      listener_.reset();
    }
    const std::shared_ptr<AgentStreams> shared = shared_;
    MutexLock lock(shared->mu);
    shared->ended.push_back(std::move(self_));
    --shared->open;
    shared->changed.NotifyAll();
  }

  void Tell() {
    MutexLock lock(listener_mu_);
    if (listener_ == nullptr) return;
    if (!in_.refused().empty()) {
      listener_->OnRefused(in_.refused().substr(0, kMaxRefusalBytes), in_.acknowledged_term());
    }
    if (in_.has_hello()) {
      const v1::AgentHello& hello = in_.hello();
      listener_->OnIntroduction({hello.node_name(), hello.agent_uid(), hello.boot_epoch(),
                                 hello.version(), hello.zone()});
    }
    if (in_.has_certificate_request() &&
        in_.certificate_request().request().size() <= kMaxRequestBytes) {
      listener_->OnCertificateRequest(in_.certificate_request().request());
    }
    if (in_.has_heartbeat()) listener_->OnReport(DecodeReport(in_.heartbeat()));
  }

  void ReleaseHold() REQUIRES(mu_) {
    if (std::exchange(closed_, true)) return;
    this->RemoveHold();
  }

  // Hello, certificate, pools, maps, drain: an agent knows its pools before it gets their maps.
  void WriteNext() REQUIRES(mu_) {
    if (writing_ || closed_) return;
    if (hello_.has_value()) {
      out_ = std::move(*hello_);
      hello_.reset();
    } else if (certificate_.has_value()) {
      out_ = std::move(*certificate_);
      certificate_.reset();
    } else if (pools_.has_value()) {
      out_ = std::move(*pools_);
      pools_.reset();
    } else if (!maps_.empty()) {
      out_ = std::move(maps_.begin()->second);
      maps_.erase(maps_.begin());
    } else if (drain_.has_value()) {
      out_ = std::move(*drain_);
      drain_.reset();
    } else {
      return;
    }
    out_.set_term(session_.term);
    writing_ = true;
    this->StartWrite(&out_);
  }

  const std::shared_ptr<AgentStreams> shared_;
  const AgentDialer::Session session_;
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;  // until OnDone
  v1::ControlUp in_;              // the read in progress

  Mutex mu_;
  v1::ControlDown out_;  // the write in progress; set under mu_ while none is
  bool writing_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
  std::optional<v1::ControlDown> hello_ GUARDED_BY(mu_);
  std::optional<v1::ControlDown> certificate_ GUARDED_BY(mu_);
  std::optional<v1::ControlDown> pools_ GUARDED_BY(mu_);
  std::map<std::string, v1::ControlDown> maps_ GUARDED_BY(mu_);  // by pool uid
  std::optional<v1::ControlDown> drain_ GUARDED_BY(mu_);

  Mutex listener_mu_;
  std::shared_ptr<AgentLinkListener> listener_ GUARDED_BY(listener_mu_);
};

class GrpcLink final : public AgentLink {
 public:
  explicit GrpcLink(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~GrpcLink() override { stream_->Abandon(); }
  GrpcLink(const GrpcLink&) = delete;  // ends the stream once
  GrpcLink& operator=(const GrpcLink&) = delete;

  void SendPools(std::vector<AgentPoolConfig> pools) override {
    v1::ControlDown message;
    v1::PoolSet* set = message.mutable_pools();
    for (const AgentPoolConfig& pool : pools) EncodePool(pool, set->add_pools());
    stream_->Send(std::move(message), std::nullopt);
  }
  void SendMap(const std::string& pool_uid, std::shared_ptr<const std::string> map) override {
    v1::ControlDown message;
    message.mutable_map()->set_pool_uid(pool_uid);
    message.mutable_map()->set_shard_map(*map);
    stream_->SendMap(pool_uid, std::move(message));
  }
  void SendDrain(bool draining, std::chrono::seconds deadline) override {
    v1::ControlDown message;
    message.mutable_drain()->set_draining(draining);
    message.mutable_drain()->set_deadline_s(static_cast<std::uint32_t>(deadline.count()));
    stream_->Send(std::nullopt, std::move(message));
  }
  void SendCertificate(const std::string& certificate, const std::string& trusted) override {
    v1::ControlDown message;
    message.mutable_certificate()->set_certificate(certificate);
    message.mutable_certificate()->set_trusted(trusted);
    stream_->SendCertificate(std::move(message));
  }

 private:
  const std::shared_ptr<Stream> stream_;
};

}  // namespace

GrpcAgentDialer::GrpcAgentDialer(std::string admin_token, TlsSource tls, MetricsRegistry* metrics)
    : handshakes_(metrics != nullptr
                      ? std::make_unique<HandshakeWatch>(*metrics, "kvfabric_operator")
                      : nullptr),
      streams_(std::make_shared<AgentStreams>(std::move(admin_token), std::move(tls))) {}

GrpcAgentDialer::~GrpcAgentDialer() {
  std::vector<std::shared_ptr<void>> ended;
  MutexLock lock(streams_->mu);
  while (streams_->open > 0) streams_->changed.Wait(streams_->mu);
  ended.swap(streams_->ended);
}

std::unique_ptr<AgentLink> GrpcAgentDialer::Dial(const AgentTarget& target, const Session& session,
                                                 std::shared_ptr<AgentLinkListener> listener) {
  auto stream = std::make_shared<Stream>(streams_, target, session, std::move(listener));
  stream->Start();
  return std::make_unique<GrpcLink>(std::move(stream));
}

}  // namespace kvfabric
