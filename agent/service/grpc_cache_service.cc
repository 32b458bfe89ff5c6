#include "agent/service/grpc_cache_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "agent/service/byte_budget.h"
#include "agent/service/cache_codec.h"
#include "agent/service/cache_wire.h"
#include "agent/service/grpc_status.h"
#include "agent/service/rpc_metrics.h"
#include "agent/service/session_table.h"
#include "agent/service/stream_outbox.h"
#include "api/grpc_tls.h"
#include "common/leash.h"
#include "kvfabric/v1/cache.grpc.pb.h"

namespace kvfabric {

namespace {

using SessionReactor = grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionReply>;
using SessionOutbox = StreamOutbox<SessionReactor, v1::SessionRequest, v1::SessionReply>;

// Blocks smaller than this are copied into the reply: a slice of its own costs more.
constexpr std::size_t kCopyBelowBytes = 512;

// What a pinned slice keeps alive until gRPC has written it.
struct SentBlock {
  PinnedBlock block;
  std::shared_ptr<ByteBudget::Hold> hold;
};
void DropSentBlock(void* sent) { delete static_cast<SentBlock*>(sent); }

grpc::ByteBuffer EncodeGet(const GetAnswer& answer, std::string head, std::size_t fitting,
                           const std::shared_ptr<ByteBudget::Hold>& hold) {
  std::vector<grpc::Slice> slices;
  std::string text = std::move(head);
  for (std::size_t i = 0; i < answer.blocks.size(); ++i) {
    const PinnedBlock& block = answer.blocks[i];
    if (!block || i >= fitting) {
      text += EncodeGetMiss();
      continue;
    }
    const ByteSpan bytes = block.bytes();
    text += EncodeGetBlockPrefix(block.header().checksum, block.header().metadata, bytes.size());
    if (bytes.size() < kCopyBelowBytes) {
      text += AsText(bytes);
      continue;
    }
    slices.emplace_back(text);
    text.clear();
    // gRPC's slice type is not const; it only reads what it sends.
    slices.emplace_back(const_cast<std::byte*>(bytes.data()), bytes.size(), DropSentBlock,
                        new SentBlock{block, hold});
  }
  if (!text.empty()) slices.emplace_back(text);
  return {slices.data(), slices.size()};
}

v1::PutStatus EncodePutStatus(PutStatus status) {
  switch (status) {
    case PutStatus::kOk:
      return v1::PUT_STATUS_OK;
    case PutStatus::kAlreadyExists:
      return v1::PUT_STATUS_ALREADY_EXISTS;
    case PutStatus::kNoSpace:
      return v1::PUT_STATUS_NO_SPACE;
    case PutStatus::kChecksumMismatch:
      return v1::PUT_STATUS_CHECKSUM_MISMATCH;
    case PutStatus::kFailed:
      return v1::PUT_STATUS_FAILED;
  }
  return v1::PUT_STATUS_FAILED;
}

Status FromByteBuffer(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return Internal("request: cannot read the received message");
  std::string text;
  text.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  if (!message.ParseFromString(text)) return InvalidArgument("request: decode: not this message");
  return Status::Ok();
}

grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

struct Shared {
  GrpcCacheService::Options options;
  GrpcCacheService::Environment environment;
  SessionTable sessions;
  std::shared_ptr<ByteBudget> reply_bytes, put_bytes;
  std::atomic<bool> serving = false;  // relaxed: late by one call does no harm
  Gauge& open_sessions;
  Counter& cut_replies;
  RpcMetrics lookup, get, put, release, erase, stat;
  Leash leash;  // ties queued ends of sessions to the service: the Fabric may go after it

  Shared(GrpcCacheService::Options o, const GrpcCacheService::Environment& e)
      : options(std::move(o)),
        environment(e),
        sessions(options.max_sessions),
        reply_bytes(std::make_shared<ByteBudget>(options.max_inflight_bytes)),
        put_bytes(std::make_shared<ByteBudget>(options.max_inflight_bytes)),
        open_sessions(e.metrics->GetGauge("kvfabric_agent_sessions", "Client sessions open now",
                                          {{"edge", "grpc"}})),
        cut_replies(e.metrics->GetCounter("kvfabric_agent_replies_cut_total",
                                          "Get replies cut short by a byte bound",
                                          {{"edge", "grpc"}})),
        lookup(*e.metrics, "grpc", "lookup"),
        get(*e.metrics, "grpc", "get"),
        put(*e.metrics, "grpc", "put"),
        release(*e.metrics, "grpc", "release"),
        erase(*e.metrics, "grpc", "delete"),
        stat(*e.metrics, "grpc", "stat") {}
};

// What a session is bound to: the caller's token, or without one the identity its certificate has.
std::string CredentialOf(const grpc::ServerContextBase& context) {
  std::string token = BearerToken(context);
  if (!token.empty()) return token;
  const auto caller = CallerIdentity(context);
  return caller ? caller->ToString() : std::string();
}

// The tenant a caller speaks for; nullopt = nobody we know.
std::optional<std::string> TenantOf(const grpc::ServerContextBase& context,
                                    const TenantOfToken& tenant_of_token) {
  if (const std::string token = BearerToken(context); !token.empty()) return tenant_of_token(token);
  const auto caller = CallerIdentity(context);
  if (!caller) return std::nullopt;
  if (caller->role == CertificateIdentity::Role::kAdmin) return std::string(kAdminTenant);
  if (caller->role == CertificateIdentity::Role::kTenant) return caller->name;
  return std::nullopt;
}

// One unary call: who asks, until when, and the answer's bookkeeping.
class Call {
 public:
  Call(Shared& shared, RpcMetrics& metrics, grpc::CallbackServerContext& context)
      : shared_(shared),
        metrics_(metrics),
        began_(shared.environment.clock->Now()),
        client_left_(context.deadline() - std::chrono::system_clock::now()),
        reactor_(context.DefaultReactor()) {
    if (!shared.serving.load(std::memory_order_relaxed)) {
      refusal_ = Unavailable("cache: this agent does not serve yet");
      return;
    }
    entry_ =
        shared.sessions.Find(MetadataValue(context, "kvfabric-session"), CredentialOf(context));
    if (!entry_) {
      refusal_ =
          Unauthenticated("cache: unknown session, or not this caller's: open Cache.Session first");
    }
  }

  const Status& refusal() const { return refusal_; }
  SessionId session() const { return entry_->session; }
  const std::string& tenant() const { return entry_->tenant; }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  // Whichever is sooner: what the request says, what gRPC says, what we bear.
  Deadline DeadlineFor(std::uint32_t remaining_ms) const {
    const auto& options = shared_.options;
    std::chrono::milliseconds budget =
        remaining_ms == 0 ? options.default_deadline : std::chrono::milliseconds(remaining_ms);
    if (client_left_ < std::chrono::hours(24)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(client_left_);
      budget = remaining_ms == 0 ? left : std::min(budget, left);
    }
    budget = std::clamp(budget, std::chrono::milliseconds(0), options.longest_deadline);
    return Deadline::At(began_ + budget);
  }

  void Finish(const Status& status) const {
    metrics_.Observe(status, shared_.environment.clock->Now() - began_);
    reactor_->Finish(ToGrpcStatus(status));
  }

 private:
  Shared& shared_;
  RpcMetrics& metrics_;
  const Clock::TimePoint began_;
  const std::chrono::system_clock::duration client_left_;
  grpc::ServerUnaryReactor* const reactor_;
  std::optional<SessionTable::Entry> entry_;
  Status refusal_;
};
using CallRef = std::shared_ptr<const Call>;

// Cache.Session: the stream whose end ends the client's leases.
class SessionStream final : public SessionReactor {
 public:
  SessionStream(std::shared_ptr<Shared> shared, std::string id, SessionId session)
      : shared_(std::move(shared)), id_(std::move(id)), session_(session), outbox_(*this, 4) {
    shared_->open_sessions.Add(1);
    Reply();
  }

 private:
  // One reply at the start and one to each request; the next is read when it has gone out.
  void Reply() {
    v1::SessionReply reply;
    reply.set_session_id(id_);
    reply.set_boot_epoch(shared_->environment.fabric->boot_epoch());
    reply.set_lease_ms(static_cast<std::uint32_t>(shared_->options.lease.count()));
    outbox_.Send(std::move(reply));
  }
  void End() {
    outbox_.Finish([](SessionReactor& reactor) { reactor.Finish(grpc::Status::OK); });
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      Reply();
    } else {
      End();
    }
  }
  void OnWriteDone(bool ok) override {
    outbox_.OnWriteDone(ok);
    if (ok) {
      outbox_.StartRead(&in_);
    } else {
      End();
    }
  }
  void OnCancel() override {}  // the read or write fails
  void OnDone() override {
    outbox_.Detach();
    shared_->sessions.Remove(id_);
    shared_->open_sessions.Add(-1);
    Fabric* const fabric = shared_->environment.fabric;
    const auto close = [fabric, session = session_] { fabric->CloseSession(session); };
    if (!shared_->environment.executor->Submit(shared_->leash.Bind(close))) close();
    delete this;
  }

  const std::shared_ptr<Shared> shared_;
  const std::string id_;
  const SessionId session_;
  v1::SessionRequest in_;
  SessionOutbox outbox_;
};

class RefusedSession final : public SessionReactor {
 public:
  explicit RefusedSession(const Status& why) { Finish(ToGrpcStatus(why)); }

 private:
  void OnDone() override { delete this; }
};

// Get and Put see the bytes of their messages, the others the generated types.
using CacheBase = v1::Cache::WithCallbackMethod_Session<v1::Cache::WithCallbackMethod_Lookup<
    v1::Cache::WithRawCallbackMethod_Get<v1::Cache::WithRawCallbackMethod_Put<
        v1::Cache::WithCallbackMethod_Release<v1::Cache::WithCallbackMethod_Delete<
            v1::Cache::WithCallbackMethod_Stat<v1::Cache::Service>>>>>>>;

}  // namespace

class GrpcCacheService::Service final : public CacheBase {
 public:
  explicit Service(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~Service() override { shared_->leash.Cut(); }

  void SetServing(bool serving) { shared_->serving.store(serving, std::memory_order_relaxed); }

  SessionReactor* Session(grpc::CallbackServerContext* context) override {
    if (!shared_->serving.load(std::memory_order_relaxed)) {
      return new RefusedSession(Unavailable("cache: this agent does not serve yet"));
    }
    const auto tenant = TenantOf(*context, shared_->options.tenant_of_token);
    if (!tenant) {
      return new RefusedSession(
          Unauthenticated("cache session: needs a known token, or a tenant's certificate"));
    }
    Fabric& fabric = *shared_->environment.fabric;
    const SessionId session = fabric.OpenSession(*tenant);
    Result<std::string> id = shared_->sessions.Add(CredentialOf(*context), {session, *tenant});
    if (!id.ok()) {
      fabric.CloseSession(session);
      return new RefusedSession(id.status());
    }
    return new SessionStream(shared_, *id, session);
  }

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override {
    return Enqueue(context, shared_->lookup, [this, request, reply](const CallRef& call) {
      if (Status status = RunLookup(call, *request, reply); !status.ok()) call->Finish(status);
    });
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) override {
    return Enqueue(context, shared_->get, [this, request, reply](const CallRef& call) {
      if (Status status = RunGet(call, *request, reply); !status.ok()) call->Finish(status);
    });
  }
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) override {
    return Enqueue(context, shared_->put, [this, request, reply](const CallRef& call) {
      if (Status status = RunPut(call, *request, reply); !status.ok()) call->Finish(status);
    });
  }
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseReply* reply) override {
    return Enqueue(context, shared_->release, [this, request, reply](const CallRef& call) {
      Fabric& fabric = *shared_->environment.fabric;
      fabric.Release(call->session(), {request->lease_ids().begin(), request->lease_ids().end()});
      reply->set_boot_epoch(fabric.boot_epoch());
      call->Finish(Status::Ok());
    });
  }
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteReply* reply) override {
    return Enqueue(context, shared_->erase, [this, request, reply](const CallRef& call) {
      if (Status status = RunDelete(call, *request, reply); !status.ok()) call->Finish(status);
    });
  }
  grpc::ServerUnaryReactor* Stat(grpc::CallbackServerContext* context,
                                 const v1::StatRequest* request, v1::StatReply* reply) override {
    return Enqueue(context, shared_->stat, [this, request, reply](const CallRef& call) {
      Fabric& fabric = *shared_->environment.fabric;
      reply->set_boot_epoch(fabric.boot_epoch());
      reply->set_node(shared_->options.node_name);
      EncodePools(fabric.Stat(call->session()), request->pool(), *reply);
      call->Finish(Status::Ok());
    });
  }

 private:
  template <typename Run>
  grpc::ServerUnaryReactor* Enqueue(grpc::CallbackServerContext* context, RpcMetrics& metrics,
                                    Run run) {
    const auto call = std::make_shared<const Call>(*shared_, metrics, *context);
    if (!call->refusal().ok()) {
      call->Finish(call->refusal());
    } else if (!shared_->environment.executor->Submit([call, run] { run(call); })) {
      call->Finish(ResourceExhausted("cache: too many requests wait: try again"));
    }
    return call->reactor();
  }

  // These answer through `call` unless they return an error.
  Status RunLookup(const CallRef& call, const v1::LookupRequest& request, v1::LookupReply* reply) {
    Fabric& fabric = *shared_->environment.fabric;
    LookupArgs args;
    KVF_ASSIGN_OR_RETURN(args.ns, DecodeNamespace(request.ns(), call->tenant(), fabric));
    KVF_ASSIGN_OR_RETURN(args.range, DecodeKeyRange(request.range()));
    for (const v1::Lane& lane : request.lanes()) {
      KVF_ASSIGN_OR_RETURN(args.lanes.emplace_back(), DecodeLane(lane));
    }
    if (args.lanes.empty()) args.lanes.emplace_back();
    reply->set_boot_epoch(fabric.boot_epoch());
    reply->set_map_epoch(fabric.map_epoch(args.ns->pool_uid));
    fabric.Lookup(call->session(), std::move(args), call->DeadlineFor(request.remaining_ms()),
                  [call, reply](Result<LookupAnswer> answer) {
                    if (answer.ok()) EncodeLookup(*answer, *reply);
                    call->Finish(answer.status());
                  });
    return Status::Ok();
  }

  Status RunGet(const CallRef& call, const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply) {
    Fabric& fabric = *shared_->environment.fabric;
    v1::GetRequest request;
    KVF_RETURN_IF_ERROR(FromByteBuffer(bytes, request));
    GetArgs args;
    KVF_ASSIGN_OR_RETURN(args.ns, DecodeNamespace(request.ns(), call->tenant(), fabric));
    KVF_ASSIGN_OR_RETURN(args.range, DecodeKeyRange(request.range()));
    KVF_ASSIGN_OR_RETURN(args.lane, LaneOf(request));
    args.lease_id = request.lease_id();
    const NamespaceRef ns = args.ns;
    const std::uint64_t asked = args.lease_id;
    fabric.Get(call->session(), std::move(args), call->DeadlineFor(request.remaining_ms()),
               [this, call, reply, ns, asked](Result<GetAnswer> answer) {
                 if (answer.ok()) AnswerGet(*call, *ns, *answer, asked, reply);
                 call->Finish(answer.status());
               });
    return Status::Ok();
  }

  void AnswerGet(const Call& call, const Namespace& ns, const GetAnswer& answer,
                 std::uint64_t asked_lease, grpc::ByteBuffer* reply) {
    Fabric& fabric = *shared_->environment.fabric;
    std::size_t total = 0;
    std::size_t fitting = 0;  // a reply is cut, not refused: the rest are misses
    for (const PinnedBlock& block : answer.blocks) {
      const std::size_t more = block ? block.bytes().size() : 0;
      if (total + more > shared_->options.max_reply_bytes) break;
      total += more;
      ++fitting;
    }
    const auto hold = std::make_shared<ByteBudget::Hold>(shared_->reply_bytes->Take(total));
    if (!*hold) fitting = 0;
    if (fitting < answer.blocks.size()) shared_->cut_replies.Add();
    *reply = EncodeGet(answer, EncodeGetHead(fabric.boot_epoch(), fabric.map_epoch(ns.pool_uid)),
                       fitting, hold);
    // The slices hold pins of their own. What the call leased for itself, as it was given no lease
    // or one that had ended, the client is not told of.
    if (answer.lease_id != asked_lease) fabric.Release(call.session(), {answer.lease_id});
  }

  // What a put under way keeps: the received slices, gathered blocks, its share of the budget.
  struct PutUnderWay {
    std::vector<grpc::Slice> slices;
    PutWire wire;
    std::optional<ByteBudget::Hold> hold;
  };

  Status RunPut(const CallRef& call, const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply) {
    Fabric& fabric = *shared_->environment.fabric;
    const auto put = std::make_shared<PutUnderWay>();
    put->hold.emplace(shared_->put_bytes->Take(bytes.Length()));
    if (!*put->hold) return ResourceExhausted("cache put: too many bytes under way: try again");
    if (!bytes.Dump(&put->slices).ok()) return Internal("cache put: cannot read the message");
    std::vector<ByteSpan> segments;
    segments.reserve(put->slices.size());
    for (const grpc::Slice& slice : put->slices) {
      segments.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    }
    KVF_ASSIGN_OR_RETURN(put->wire, ParsePut(segments, {}));
    v1::PutRequest request;
    if (!request.ParseFromString(put->wire.head)) {
      return InvalidArgument("cache put: decode: not a PutRequest");
    }
    KVF_ASSIGN_OR_RETURN(PutArgs args, PutArgsOf(*call, request, put->wire));
    const NamespaceRef ns = args.ns;
    fabric.Put(call->session(), std::move(args), call->DeadlineFor(request.remaining_ms()),
               [&fabric, call, reply, ns, put](Result<PutAnswer> answer) {
                 if (answer.ok()) {
                   v1::PutReply message;
                   message.set_boot_epoch(fabric.boot_epoch());
                   message.set_map_epoch(fabric.map_epoch(ns->pool_uid));
                   for (const PutStatus status : answer->status) {
                     message.add_status(EncodePutStatus(status));
                   }
                   for (const std::uint8_t copies : answer->copies) message.add_copies(copies);
                   *reply = ToByteBuffer(message);
                 }
                 call->Finish(answer.status());
               });
    return Status::Ok();
  }

  Result<PutArgs> PutArgsOf(const Call& call, const v1::PutRequest& request, PutWire& wire) {
    PutArgs args;
    KVF_ASSIGN_OR_RETURN(
        args.ns, DecodeNamespace(request.ns(), call.tenant(), *shared_->environment.fabric));
    KVF_ASSIGN_OR_RETURN(args.range, DecodeKeyRange(request.range()));
    KVF_ASSIGN_OR_RETURN(args.lane, LaneOf(request));
    if (wire.blocks.size() != args.range.keys.size()) {
      return InvalidArgument("cache put: " + std::to_string(wire.blocks.size()) + " blocks for " +
                             std::to_string(args.range.keys.size()) + " keys (must be equal)");
    }
    for (PutWire::Block& block : wire.blocks) {
      if (block.checksum == 0) {
        return InvalidArgument("cache put: a block without checksum: over gRPC it is required");
      }
      args.items.push_back({block.data, block.checksum, std::move(block.metadata)});
    }
    return args;
  }

  Status RunDelete(const CallRef& call, const v1::DeleteRequest& request, v1::DeleteReply* reply) {
    Fabric& fabric = *shared_->environment.fabric;
    GetArgs args;
    KVF_ASSIGN_OR_RETURN(args.ns, DecodeNamespace(request.ns(), call->tenant(), fabric));
    KVF_ASSIGN_OR_RETURN(args.range, DecodeKeyRange(request.range()));
    KVF_ASSIGN_OR_RETURN(args.lane, LaneOf(request));
    reply->set_boot_epoch(fabric.boot_epoch());
    reply->set_map_epoch(fabric.map_epoch(args.ns->pool_uid));
    fabric.Delete(call->session(), std::move(args), call->DeadlineFor(request.remaining_ms()),
                  [call, reply](Result<std::uint32_t> deleted) {
                    if (deleted.ok()) reply->set_deleted(*deleted);
                    call->Finish(deleted.status());
                  });
    return Status::Ok();
  }

  template <typename Request>
  static Result<Lane> LaneOf(const Request& request) {
    return request.has_lane() ? DecodeLane(request.lane()) : Result<Lane>(Lane{});
  }

  const std::shared_ptr<Shared> shared_;
};

GrpcCacheService::GrpcCacheService(Options options, const Environment& environment)
    : service_(
          std::make_unique<Service>(std::make_shared<Shared>(std::move(options), environment))) {}

GrpcCacheService::~GrpcCacheService() = default;

grpc::Service& GrpcCacheService::service() { return *service_; }

void GrpcCacheService::SetServing(bool serving) { service_->SetServing(serving); }

}  // namespace kvfabric
