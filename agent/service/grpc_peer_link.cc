#include "agent/service/grpc_peer_link.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "agent/service/agent_config.h"
#include "agent/service/grpc_status.h"
#include "agent/service/peer_codec.h"
#include "agent/service/peer_session.h"
#include "agent/service/stream_outbox.h"
#include "api/grpc_tls.h"
#include "common/mutex.h"
#include "kvfabric/v1/peer.grpc.pb.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMaxQueued = 8192;
constexpr int kMaxMessageBytes = 80 << 20;

using Reactor = grpc::ClientBidiReactor<v1::PeerRequest, v1::PeerReply>;
using Outbox = StreamOutbox<Reactor, v1::PeerReply, v1::PeerRequest>;

// By certificate the other end must be the node we mean: a reused port is never mistaken for it.
std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const PeerAddress& address,
                                                         const TlsSource& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  return MakeChannelCredentials(*tls(), {CertificateIdentity::Agent(address.node_name)});
}

std::shared_ptr<grpc::Channel> MakeChannel(const PeerAddress& address, const TlsSource& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A connection of its own: a stream must not share the fate of another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16'777'215);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(FormatAddress({address.host, address.grpc_port}),
                                   CredentialsFor(address, tls), arguments);
}

// Streams that gRPC still holds, and ended ones. The last channel to go joins gRPC's callback
// threads, so it must never go on one of them, where OnDone runs (in gRPC 1.51 that ends the
// process): ended streams are kept until the next one is opened, or to the end.
class StreamCount {
 public:
  using Ended = std::shared_ptr<void>;

  // Not on a callback thread.
  void Enter() EXCLUDES(mu_) {
    std::vector<Ended> ended;
    MutexLock lock(mu_);
    ++count_;
    ended.swap(ended_);
  }
  void Leave(Ended stream) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ended_.push_back(std::move(stream));
    if (--count_ == 0) none_.NotifyAll();
  }
  void WaitForNone() EXCLUDES(mu_) {
    std::vector<Ended> ended;
    MutexLock lock(mu_);
    while (count_ > 0) none_.Wait(mu_);
    ended.swap(ended_);
  }

 private:
  Mutex mu_;
  CondVar none_;
  std::size_t count_ GUARDED_BY(mu_) = 0;
  std::vector<Ended> ended_ GUARDED_BY(mu_);
};

// What the session holds of its stream; outlives the call.
class StreamHandle final : public PeerStream {
 public:
  explicit StreamHandle(Reactor& reactor) : outbox(reactor, kMaxQueued) {}

  bool Send(const v1::PeerRequest& request, bool urgent) override {
    return outbox.Send(request, urgent);
  }
  void Cancel() override;

  Outbox outbox;
};

// One call of Peer.Session; gives itself to StreamCount when gRPC is done with it.
class StreamCall final : public Reactor {
 public:
  StreamCall(std::shared_ptr<PeerSession> session, std::uint64_t generation,
             std::shared_ptr<StreamCount> count, const PeerAddress& address, const TlsSource& tls)
      : handle_(std::make_shared<StreamHandle>(*this)),
        session_(std::move(session)),
        generation_(generation),
        count_(std::move(count)),
        stub_(v1::Peer::NewStub(MakeChannel(address, tls))) {}

  std::shared_ptr<StreamHandle> Start(const std::string& token) {
    count_->Enter();
    std::shared_ptr<StreamHandle> handle = handle_;
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    stub_->async()->Session(&context_, this);
    AddHold();  // writes come from outside reactions; given back by End
    StartRead(&in_);
    StartCall();
    return handle;
  }

  void CancelNow() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      handle_->outbox.Finish([](Reactor& reactor) { reactor.RemoveHold(); });
      return;
    }
    session_->OnReply(generation_, in_);
    in_.Clear();
    handle_->outbox.StartRead(&in_);
  }
  void OnWriteDone(bool ok) override { handle_->outbox.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override {
    handle_->outbox.Detach();
    session_->OnStreamEnd(generation_, FromGrpcStatus(status));
    const std::shared_ptr<StreamCount> count = count_;
    count->Leave(std::shared_ptr<StreamCall>(this));
  }

  const std::shared_ptr<StreamHandle> handle_;
  const std::shared_ptr<PeerSession> session_;
  const std::uint64_t generation_;
  const std::shared_ptr<StreamCount> count_;
  const std::unique_ptr<v1::Peer::Stub> stub_;
  grpc::ClientContext context_;
  v1::PeerReply in_;
};

void StreamHandle::Cancel() {
  // The write under way may hang on a peer that does not read: cancelling the call ends it.
  outbox.With([](Reactor& reactor) { static_cast<StreamCall&>(reactor).CancelNow(); });
}

}  // namespace

struct GrpcPeerConnector::Shared {
  const Options options;
  const Environment environment;
  const std::shared_ptr<StreamCount> streams = std::make_shared<StreamCount>();
  Timer keepalive;
  Counter& lost;

  Shared(Options o, Environment e)
      : options(std::move(o)),
        environment(std::move(e)),
        keepalive(*environment.clock),
        lost(environment.metrics->GetCounter(
            "kvfabric_agent_peer_links_lost_total",
            "Times a peer went down: its stream ended or keepalives were not answered")) {}
};

namespace {

BulkClient::Options BulkOptionsFor(BulkClient::Options options, const PeerAddress& address) {
  options.peer_identity = CertificateIdentity::Agent(address.node_name).ToString();
  return options;
}

class GrpcPeerLink final : public PeerLink {
 public:
  GrpcPeerLink(std::shared_ptr<GrpcPeerConnector::Shared> shared, const PeerAddress& address)
      : shared_(std::move(shared)),
        bulk_(std::make_shared<BulkClient>(
            BulkOptionsFor(shared_->options.bulk, address),
            BulkClient::Environment{shared_->environment.loops, shared_->environment.timer,
                                    shared_->environment.clock, shared_->environment.metrics})) {
    const GrpcPeerConnector::Options& from = shared_->options;
    PeerSession::Options options;
    options.self = from.self;
    options.peer = address;
    options.keepalive = from.keepalive;
    options.down_after = from.down_after;
    options.first_retry = from.first_retry;
    options.last_retry = from.last_retry;
    options.max_requests = from.max_requests;
    options.open_stream = [address, token = from.token, tls = from.tls, streams = shared_->streams](
                              std::shared_ptr<PeerSession> session, std::uint64_t generation) {
      auto* call = new StreamCall(std::move(session), generation, streams, address, tls);
      return call->Start(tls ? "" : token());
    };
    PeerSession::Environment environment;
    environment.timer = shared_->environment.timer;
    environment.keepalive = &shared_->keepalive;
    environment.clock = shared_->environment.clock;
    environment.lost = &shared_->lost;
    environment.bulk = bulk_;
    session_ = std::make_shared<PeerSession>(std::move(options), environment);
    session_->Start();
  }
  ~GrpcPeerLink() override {
    session_->Close();
    bulk_->Shutdown();
  }
  GrpcPeerLink(const GrpcPeerLink&) = delete;  // one session, one owner
  GrpcPeerLink& operator=(const GrpcPeerLink&) = delete;

  bool up() const override { return session_->up(); }
  PeerIdentity identity() const override { return session_->identity(); }
  KeepaliveState peer_state() const override { return session_->peer_state(); }

  void Announce(AnnounceRequest request, Deadline deadline,
                Completion<AnnounceReply> done) override {
    v1::PeerRequest message;
    Encode(request, *message.mutable_announce());
    Ask(
        message, deadline, std::move(done),
        [](const v1::PeerReply& r) -> auto& { return r.announce(); });
  }
  void Locate(LocateRequest request, Deadline deadline, Completion<LocateReply> done) override {
    v1::PeerRequest message;
    Encode(request, *message.mutable_locate());
    Ask(
        message, deadline, std::move(done),
        [](const v1::PeerReply& r) -> auto& { return r.locate(); });
  }
  void Lease(LeaseRequest request, Deadline deadline, Completion<LeaseReply> done) override {
    v1::PeerRequest message;
    Encode(request, *message.mutable_lease());
    Ask(
        message, deadline, std::move(done),
        [](const v1::PeerReply& r) -> auto& { return r.lease(); });
  }
  void Release(std::vector<std::uint64_t> lease_ids) override {
    v1::PeerRequest message;
    for (const std::uint64_t id : lease_ids) message.mutable_release()->add_lease_ids(id);
    session_->Tell(message);
  }
  void Offer(OfferRequest request, Deadline deadline, Completion<OfferReply> done) override {
    v1::PeerRequest message;
    Encode(request, *message.mutable_offer());
    Ask(
        message, deadline, std::move(done),
        [](const v1::PeerReply& r) -> auto& { return r.offer(); });
  }
  void Delete(DeleteAtPeerRequest request, Deadline deadline,
              Completion<std::uint32_t> done) override {
    v1::PeerRequest message;
    Encode(request, *message.mutable_delete_());
    session_->Ask(message, deadline, [done](Result<const v1::PeerReply*> reply) {
      done(reply.ok() ? Result<std::uint32_t>((*reply)->delete_().deleted()) : reply.status());
    });
  }
  void FetchMap(std::string pool_uid, Deadline deadline, Completion<std::string> done) override {
    v1::PeerRequest message;
    message.mutable_map()->set_pool_uid(pool_uid);
    session_->Ask(message, deadline, [done](Result<const v1::PeerReply*> reply) {
      done(reply.ok() ? Result<std::string>((*reply)->map().shard_map()) : reply.status());
    });
  }
  void Fetch(std::string pool_uid, std::uint64_t lease_id, std::vector<FetchItem> items,
             FetchSink sink, Deadline deadline, Completion<FetchResult> done) override {
    bulk_->Fetch(std::move(pool_uid), lease_id, std::move(items), std::move(sink), deadline,
                 std::move(done));
  }
  void Push(std::string pool_uid, OfferReason reason, std::vector<PinnedBlock> blocks,
            Deadline deadline, Completion<PushResult> done) override {
    bulk_->Push(std::move(pool_uid), reason, std::move(blocks), deadline, std::move(done));
  }

 private:
  // `field` picks the answer's message, which must decode.
  template <typename Answer, typename Field>
  void Ask(v1::PeerRequest& message, Deadline deadline, Completion<Answer> done, Field field) {
    session_->Ask(message, deadline,
                  [done = std::move(done), field](Result<const v1::PeerReply*> reply) {
                    done(reply.ok() ? Decode(field(**reply)) : Result<Answer>(reply.status()));
                  });
  }

  const std::shared_ptr<GrpcPeerConnector::Shared> shared_;
  const std::shared_ptr<BulkClient> bulk_;
  std::shared_ptr<PeerSession> session_;
};

}  // namespace

GrpcPeerConnector::GrpcPeerConnector(Options options, Environment environment)
    : shared_(std::make_shared<Shared>(std::move(options), std::move(environment))) {}

GrpcPeerConnector::~GrpcPeerConnector() { shared_->streams->WaitForNone(); }

std::unique_ptr<PeerLink> GrpcPeerConnector::Connect(const PeerAddress& address) {
  return std::make_unique<GrpcPeerLink>(shared_, address);
}

}  // namespace kvfabric
