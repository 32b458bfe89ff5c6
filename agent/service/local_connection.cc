#include "agent/service/local_connection.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "agent/service/local_codec.h"
#include "common/log.h"

namespace kvfabric {

namespace {

// Parts of a GET answer: well under the body limit, and blocks so that a slow reader's queue moves.
constexpr std::size_t kReplyBodyBytes = std::size_t{512} << 10U;
constexpr std::size_t kReplyEntryBytes = 64;
constexpr std::size_t kReplyPayloadBytes = std::size_t{1} << 20U;

// The memfd's own descriptor stays the arena's.
std::shared_ptr<const UniqueFd> DescriptorOf(const Memfd& memfd) {
  return std::make_shared<const UniqueFd>(::fcntl(memfd.fd(), F_DUPFD_CLOEXEC, 0));
}

Status Bad(std::string_view what) { return InvalidArgument("local socket: " + std::string(what)); }

}  // namespace

LocalConnection::LocalConnection(std::uint64_t id, bool over_tcp,
                                 std::shared_ptr<LocalConnections> all)
    : id_(id), all_(std::move(all)), fabric_(*all_->environment.fabric), over_tcp_(over_tcp) {}

Status LocalConnection::OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
  if (frame.header.reply()) return OnReply(frame);
  if (!greeted_) return OnHello(frame);
  return OnRequest(frame, parts);
}

Status LocalConnection::OnReply(const ReceivedFrame& frame) {
  if (frame.header.op != FrameOp::kCloseMemfd || !greeted_) return Bad("an answer to nothing");
  KVF_ASSIGN_OR_RETURN(const wire::CloseMemfd closed, wire::Decode<wire::CloseMemfd>(frame.body));
  if (mapped_.erase(closed.id) > 0) all_->environment.arena->OnUnmapped(id_, closed.id);
  return Status::Ok();
}

Status LocalConnection::OnHello(const ReceivedFrame& frame) {
  if (frame.header.op != FrameOp::kHello) {
    return Unauthenticated("local socket: the first frame must be HELLO");
  }
  const Request request = Begin(frame.header);
  KVF_ASSIGN_OR_RETURN(const wire::HelloRequest hello,
                       wire::Decode<wire::HelloRequest>(frame.body));
  Status refused;
  if (hello.version != wire::kLocalProtocolVersion) {
    refused =
        Unimplemented("HELLO: version " + std::to_string(hello.version) + " (this agent speaks " +
                      std::to_string(wire::kLocalProtocolVersion) + ")");
  } else if (auto tenant = all_->environment.tenant_of(hello.token); !tenant) {
    refused = Unauthenticated("HELLO: unknown token: see the agent's tokens file");
  } else {
    tenant_ = std::move(*tenant);
    if (!hello.pool.empty()) {
      auto ns = fabric_.ResolveNamespace(hello.pool, tenant_, hello.fingerprint, hello.kind);
      if (ns.ok()) ns_ = std::move(ns).value();
      refused = ns.status();
    }
  }
  End(request, refused, all_->metrics.hello);
  if (!refused.ok()) {
    ReplyError(frame.header, refused);
    frames_->CloseAfterFlush(refused);
    return Status::Ok();
  }
  Welcome(request);
  return Status::Ok();
}

void LocalConnection::Welcome(const Request& request) {
  greeted_ = true;
  session_ = fabric_.OpenSession(tenant_);
  frames_->SetHandler(shared_from_this(),
                      {.max_body_bytes = FrameLimits{}.max_body_bytes,
                       .max_payload_bytes = over_tcp_ ? FrameLimits{}.max_payload_bytes : 0,
                       .max_descriptors = static_cast<std::uint8_t>(over_tcp_ ? 0 : 1)});
  frames_->SetIdleTimeout(over_tcp_ ? all_->options.tcp_idle_timeout
                                    : std::chrono::milliseconds(0));
  wire::HelloReply reply;
  reply.lease_ms = static_cast<std::uint32_t>(all_->options.lease.count());
  if (ns_ != nullptr) reply.pool_uid = ns_->pool_uid;
  std::vector<MemfdRef> memfds;
  if (!over_tcp_ && ns_ != nullptr) {
    memfds = MapNew(all_->environment.arena->MemfdsOf(tenant_));
  }
  const std::size_t first = std::min(memfds.size(), kMaxDescriptorsPerWrite);
  OutgoingFrame frame;
  frame.header = ReplyHeader(request.header);
  for (std::size_t i = 0; i < first; ++i) {
    reply.memfds.push_back({memfds[i]->id(), memfds[i]->size_bytes()});
    frame.descriptors.push_back(DescriptorOf(*memfds[i]));
  }
  frame.body = wire::Encode(reply);
  frames_->Send(std::move(frame));
  SendMemfds(memfds, first);
}

std::vector<MemfdRef> LocalConnection::MapNew(std::vector<MemfdRef> memfds) {
  std::vector<MemfdRef> fresh;
  for (MemfdRef& memfd : memfds) {
    if (mapped_.contains(memfd->id()) || !all_->environment.arena->OnMapped(id_, memfd->id())) {
      continue;
    }
    mapped_.insert(memfd->id());
    fresh.push_back(std::move(memfd));
  }
  return fresh;
}

void LocalConnection::SendMemfds(const std::vector<MemfdRef>& memfds, std::size_t from) {
  while (from < memfds.size()) {
    const std::size_t end = std::min(from + kMaxDescriptorsPerWrite, memfds.size());
    wire::NewMemfd message;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kNewMemfd;
    for (; from < end; ++from) {
      const Memfd& memfd = *memfds[from];
      message.memfds.push_back({memfd.id(), memfd.size_bytes()});
      frame.descriptors.push_back(DescriptorOf(memfd));
    }
    frame.body = wire::Encode(message);
    frames_->Send(std::move(frame));
  }
}

bool LocalConnection::EnsureMapped(std::uint64_t memfd_id) {
  if (mapped_.contains(memfd_id)) return true;
  SendMemfds(MapNew(all_->environment.arena->MemfdsOf(tenant_)), 0);
  return mapped_.contains(memfd_id);
}

void LocalConnection::AskToUnmap(std::uint64_t memfd_id) {
  if (frames_ == nullptr || !mapped_.contains(memfd_id)) return;
  OutgoingFrame frame;
  frame.header.op = FrameOp::kCloseMemfd;
  frame.body = wire::Encode(wire::CloseMemfd{memfd_id});
  frames_->Send(std::move(frame));
}

Status LocalConnection::OnRequest(ReceivedFrame& frame, std::vector<PayloadPart>& parts) {
  const FrameHeader& header = frame.header;
  if (header.payload_bytes > 0 && header.op != FrameOp::kPutInline) {
    return Bad("a payload where none belongs");
  }
  if (!frame.descriptors.empty() && header.op != FrameOp::kStaging) {
    return Bad("descriptors where none belong");
  }
  if (ns_ == nullptr && header.op != FrameOp::kStat && header.op != FrameOp::kPing) {
    return FailedPrecondition("local socket: this connection named no pool in its HELLO");
  }
  switch (header.op) {
    case FrameOp::kPing:
      Reply(header, {});
      return Status::Ok();
    case FrameOp::kStat: {
      const Request request = Begin(header);
      Reply(header, wire::Encode(ToWire(fabric_.Stat(session_))));
      End(request, Status::Ok(), all_->metrics.stat);
      return Status::Ok();
    }
    case FrameOp::kStaging:
      return OnStaging(frame);
    case FrameOp::kLookup:
      return OnLookup(frame);
    case FrameOp::kGet:
      return OnGet(frame);
    case FrameOp::kPut:
      return OnPut(frame);
    case FrameOp::kPutInline:
      return OnPutInline(frame, parts);
    case FrameOp::kDelete:
      return OnDelete(frame);
    case FrameOp::kRelease:
      return OnRelease(frame);
    case FrameOp::kRenew:
      return OnRenew(frame);
    default:
      return Unimplemented("local socket: operation " +
                           std::to_string(static_cast<int>(header.op)) + " is unknown");
  }
}

Status LocalConnection::OnStaging(ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(const auto staging, wire::Decode<wire::StagingRequest>(frame.body));
  if (over_tcp_ || frame.descriptors.size() != 1) return Bad("STAGING: needs one descriptor");
  auto mapped = StagingMap::Create(std::move(frame.descriptors[0]), staging.size_bytes,
                                   all_->options.max_staging_bytes);
  if (!mapped.ok()) {
    ReplyError(frame.header, mapped.status());
    return Status::Ok();
  }
  staging_ = std::move(mapped).value();
  Reply(frame.header, {});
  return Status::Ok();
}

template <typename T>
Completion<T> LocalConnection::Then(Request request,
                                    void (LocalConnection::*then)(const Request&,
                                                                  const Result<T>&)) {
  return [weak = weak_from_this(), loop = &frames_->loop(), request = std::move(request),
          then](Result<T> answer) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (loop->InLoop() && self->in_call_) {
      ((*self).*then)(request, answer);
      return;
    }
    self->AnswerLater(*loop, [request, then, answer = std::move(answer)](LocalConnection& to) {
      (to.*then)(request, answer);
    });
  };
}

void LocalConnection::AnswerLater(EventLoop& loop, LateAnswer answer) {
  {
    MutexLock lock(late_mu_);
    late_.push_back(std::move(answer));
    if (std::exchange(late_posted_, true)) return;
  }
  if (loop.Submit([self = shared_from_this()] { self->GiveLateAnswers(); })) return;
  // The loop stops, and the connection with it.
  MutexLock lock(late_mu_);
  late_posted_ = false;
}

void LocalConnection::GiveLateAnswers() {
  std::vector<LateAnswer> answers;
  {
    MutexLock lock(late_mu_);
    answers.swap(late_);
    late_posted_ = false;
  }
  for (const LateAnswer& answer : answers) {
    if (frames_ != nullptr) answer(*this);
  }
}

Status LocalConnection::OnLookup(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(auto message, wire::Decode<wire::LookupRequest>(frame.body));
  Request request = Begin(frame.header);
  LookupArgs args{ns_, std::move(message.lanes), ToKeyRange(std::move(message.range))};
  in_call_ = true;
  fabric_.Lookup(session_, std::move(args), DeadlineOf(frame.header, *all_->environment.clock),
                 Then(std::move(request), &LocalConnection::AnswerLookup));
  in_call_ = false;
  return Status::Ok();
}

void LocalConnection::AnswerLookup(const Request& request, const Result<LookupAnswer>& answer) {
  if (answer.ok()) {
    Reply(request.header, wire::Encode(ToWire(*answer)));
  } else {
    ReplyError(request.header, answer.status());
  }
  End(request, answer.status(), all_->metrics.lookup);
}

Status LocalConnection::OnGet(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(auto message, wire::Decode<wire::GetRequest>(frame.body));
  Request request = Begin(frame.header);
  request.lease_id = message.lease_id;
  GetArgs args{ns_, message.lane, ToKeyRange(std::move(message.range)), message.lease_id};
  in_call_ = true;
  fabric_.Get(session_, std::move(args), DeadlineOf(frame.header, *all_->environment.clock),
              Then(std::move(request), &LocalConnection::AnswerGet));
  in_call_ = false;
  return Status::Ok();
}

void LocalConnection::AnswerGet(const Request& request, const Result<GetAnswer>& answer) {
  if (!answer.ok()) {
    ReplyError(request.header, answer.status());
  } else if (over_tcp_) {
    SendBlocks(request, *answer);
  } else {
    SendLocations(request, *answer);
  }
  End(request, answer.status(), all_->metrics.get);
}

void LocalConnection::SendLocations(const Request& request, const GetAnswer& answer) {
  wire::GetReply part{
      answer.lease_id, static_cast<std::uint32_t>(all_->options.lease.count()), 0, {}};
  std::size_t body_bytes = 0;
  for (std::size_t i = 0; i < answer.blocks.size(); ++i) {
    wire::GetEntry entry;
    const PinnedBlock& block = answer.blocks[i];
    if (block && EnsureMapped(block.location().memfd_id)) {
      entry = {.place = wire::GetPlace::kMemfd,
               .from_peer = i < answer.from_peer.size() && answer.from_peer[i],
               .memfd_id = block.location().memfd_id,
               .offset = block.location().offset,
               .length = block.header().length_bytes,
               .checksum = block.header().checksum,
               .metadata = block.header().metadata};
    } else if (block) {
      all_->metrics.foreign_locations.Add();
    }
    const std::size_t bytes = kReplyEntryBytes + entry.metadata.size();
    if (body_bytes + bytes > kReplyBodyBytes) {
      Reply(request.header, wire::Encode(part), kFrameMore);
      part.first_index = static_cast<std::uint32_t>(i);
      part.entries.clear();
      body_bytes = 0;
    }
    body_bytes += bytes;
    part.entries.push_back(std::move(entry));
  }
  Reply(request.header, wire::Encode(part));
}

// Over TCP the pins hang on the frames until they are sent. A lease that the call took for itself,
// as it was given none or one that had ended, goes back at once: the client gets bytes, not a
// place.
void LocalConnection::SendBlocks(const Request& request, const GetAnswer& answer) {
  const bool own_lease = answer.lease_id != request.lease_id;
  wire::GetReply part{own_lease ? 0 : answer.lease_id,
                      static_cast<std::uint32_t>(all_->options.lease.count()),
                      0,
                      {}};
  OutgoingFrame frame;
  std::size_t body_bytes = 0;
  std::size_t payload_bytes = 0;
  const auto owner = std::make_shared<const std::vector<PinnedBlock>>(answer.blocks);
  const auto flush = [&](std::size_t next, std::uint8_t flags) {
    frame.header = ReplyHeader(request.header);
    frame.header.flags |= flags;
    frame.body = wire::Encode(part);
    frame.payload_owner = owner;
    if (frames_ != nullptr) frames_->Send(std::exchange(frame, OutgoingFrame{}));
    part.first_index = static_cast<std::uint32_t>(next);
    part.entries.clear();
    body_bytes = payload_bytes = 0;
  };
  for (std::size_t i = 0; i < owner->size(); ++i) {
    wire::GetEntry entry;
    const PinnedBlock& block = (*owner)[i];
    const std::size_t length = block ? block.header().length_bytes : 0;
    if (block && length <= FrameLimits{}.max_payload_bytes) {
      entry = {.place = wire::GetPlace::kInline,
               .from_peer = i < answer.from_peer.size() && answer.from_peer[i],
               .memfd_id = 0,
               .offset = 0,
               .length = length,
               .checksum = block.header().checksum,
               .metadata = block.header().metadata};
    }
    const std::size_t bytes = kReplyEntryBytes + entry.metadata.size();
    const bool full = payload_bytes > 0 && payload_bytes + length > kReplyPayloadBytes;
    if (full || body_bytes + bytes > kReplyBodyBytes) flush(i, kFrameMore);
    body_bytes += bytes;
    if (entry.place == wire::GetPlace::kInline) {
      frame.payload.push_back(block.bytes().first(length));
      payload_bytes += length;
    }
    part.entries.push_back(std::move(entry));
  }
  flush(0, 0);
  if (own_lease) fabric_.Release(session_, {answer.lease_id});
}

Status LocalConnection::OnPut(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(auto message, wire::Decode<wire::PutRequest>(frame.body));
  const Request request = Begin(frame.header);
  PutArgs args{ns_, message.lane, ToKeyRange(std::move(message.range)), {}};
  Status fault =
      staging_ != nullptr ? Status::Ok() : FailedPrecondition("PUT: send STAGING before it");
  for (wire::PutEntry& entry : message.entries) {
    if (fault.ok() && !staging_->Contains(entry.offset, entry.length)) {
      fault = InvalidArgument("PUT: a block lies outside the staging memory");
    }
    if (!fault.ok()) break;
    args.items.push_back({.bytes = staging_->At(entry.offset, entry.length),
                          .checksum = entry.checksum,
                          .metadata = std::move(entry.metadata)});
  }
  if (!fault.ok()) {
    ReplyError(frame.header, fault);
    End(request, fault, all_->metrics.put);
    return Status::Ok();
  }
  SubmitPut(request, std::move(args), staging_);
  return Status::Ok();
}

Status LocalConnection::OnPutInline(const ReceivedFrame& frame, std::vector<PayloadPart>& parts) {
  Incoming incoming{Begin(frame.header), {}, nullptr, nullptr};
  KVF_ASSIGN_OR_RETURN(incoming.put, wire::Decode<wire::PutInlineRequest>(frame.body));
  const std::size_t bytes = frame.header.payload_bytes;
  if (!over_tcp_ || bytes == 0) return Bad("PUT_INLINE: needs a payload over TCP");
  incoming.hold = std::make_shared<ByteBudget::Hold>(all_->inline_budget->Take(bytes));
  if (*incoming.hold) {
    incoming.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes);
    parts.push_back({incoming.bytes.get(), bytes});
  }
  incoming_.emplace(std::move(incoming));
  return Status::Ok();
}

Status LocalConnection::OnPayload(const std::vector<std::uint64_t>& checksums) {
  if (!incoming_) return Bad("a payload nobody asked for");
  Incoming incoming = std::move(*incoming_);
  incoming_.reset();
  const FrameHeader& header = incoming.request.header;
  if (incoming.bytes == nullptr || checksums.at(0) != header.payload_checksum) {
    const bool refused = incoming.bytes == nullptr;
    (refused ? all_->metrics.inline_no_space : all_->metrics.checksum_mismatches).Add();
    const auto outcome = refused ? wire::PutOutcome::kNoSpace : wire::PutOutcome::kChecksumMismatch;
    Reply(header, wire::Encode(AllPuts(1, outcome)));
    End(incoming.request, Status::Ok(), all_->metrics.put);
    return Status::Ok();
  }
  PutArgs args{ns_, incoming.put.lane, ToKeyRange(std::move(incoming.put.range)), {}};
  args.items.push_back({.bytes = ByteSpan(incoming.bytes.get(), header.payload_bytes),
                        .checksum = header.payload_checksum,
                        .metadata = std::move(incoming.put.metadata)});
  struct Owner {
    std::shared_ptr<std::byte[]> bytes;
    std::shared_ptr<ByteBudget::Hold> hold;
  };
  const auto owner =
      std::make_shared<const Owner>(Owner{std::move(incoming.bytes), std::move(incoming.hold)});
  SubmitPut(incoming.request, std::move(args), owner);
  return Status::Ok();
}

// Copying and hashing take long: never on the loop. The bytes stay until Fabric is done with them.
void LocalConnection::SubmitPut(const Request& request, PutArgs args,
                                std::shared_ptr<const void> bytes_owner) {
  const Deadline deadline = DeadlineOf(request.header, *all_->environment.clock);
  const std::size_t count = args.items.size();
  Completion<PutAnswer> done = [then = Then(request, &LocalConnection::AnswerPut),
                                owner = std::move(bytes_owner)](Result<PutAnswer> answer) mutable {
    owner.reset();  // before the client hears of it and sends the next
    then(std::move(answer));
  };
  const auto shared_args = std::make_shared<PutArgs>(std::move(args));
  Task task = all_->leash.Bind([&fabric = fabric_, session = session_, shared_args, deadline,
                                done = std::move(done)]() mutable {
    fabric.Put(session, std::move(*shared_args), deadline, std::move(done));
  });
  if (all_->environment.put_workers->Submit(std::move(task))) return;
  Reply(request.header, wire::Encode(AllPuts(count, wire::PutOutcome::kNoSpace)));
  End(request, ResourceExhausted("put queue is full"), all_->metrics.put);
}

void LocalConnection::AnswerPut(const Request& request, const Result<PutAnswer>& answer) {
  if (answer.ok()) {
    Reply(request.header, wire::Encode(ToWire(*answer)));
  } else {
    ReplyError(request.header, answer.status());
  }
  End(request, answer.status(), all_->metrics.put);
}

Status LocalConnection::OnDelete(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(auto message, wire::Decode<wire::DeleteRequest>(frame.body));
  Request request = Begin(frame.header);
  GetArgs args{ns_, message.lane, ToKeyRange(std::move(message.range)), 0};
  in_call_ = true;
  fabric_.Delete(session_, std::move(args), DeadlineOf(frame.header, *all_->environment.clock),
                 Then(std::move(request), &LocalConnection::AnswerDelete));
  in_call_ = false;
  return Status::Ok();
}

void LocalConnection::AnswerDelete(const Request& request, const Result<std::uint32_t>& answer) {
  if (answer.ok()) {
    Reply(request.header, wire::Encode(wire::DeleteReply{*answer}));
  } else {
    ReplyError(request.header, answer.status());
  }
  End(request, answer.status(), all_->metrics.remove);
}

Status LocalConnection::OnRelease(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(const auto message, wire::Decode<wire::ReleaseRequest>(frame.body));
  fabric_.Release(session_, message.lease_ids);
  if (frame.header.request_id != 0) Reply(frame.header, {});
  return Status::Ok();
}

Status LocalConnection::OnRenew(const ReceivedFrame& frame) {
  KVF_ASSIGN_OR_RETURN(const auto message, wire::Decode<wire::RenewRequest>(frame.body));
  const bool renewed = fabric_.Renew(session_, message.lease_id);
  Reply(frame.header,
        wire::Encode(wire::RenewReply{
            renewed, renewed ? static_cast<std::uint32_t>(all_->options.lease.count()) : 0U}));
  return Status::Ok();
}

LocalConnection::Request LocalConnection::Begin(const FrameHeader& header) {
  ++in_flight_;
  if (in_flight_ >= all_->options.max_in_flight && !paused_) {
    paused_ = true;
    frames_->Pause();
  }
  return {header, all_->environment.clock->Now(), 0};
}

void LocalConnection::End(const Request& request, const Status& status, RpcMetrics& metrics) {
  metrics.Observe(status, all_->environment.clock->Now() - request.began);
  --in_flight_;
  if (paused_ && in_flight_ < all_->options.max_in_flight && frames_ != nullptr) {
    paused_ = false;
    frames_->Resume();
  }
}

FrameHeader LocalConnection::ReplyHeader(const FrameHeader& request) const {
  FrameHeader header;
  header.op = request.op;
  header.flags = kFrameReply;
  header.request_id = request.request_id;
  header.boot_epoch = fabric_.boot_epoch();
  header.map_epoch = ns_ != nullptr ? fabric_.map_epoch(ns_->pool_uid) : 0;
  return header;
}

void LocalConnection::Reply(const FrameHeader& request, std::string body, std::uint8_t flags) {
  if (frames_ == nullptr) return;
  OutgoingFrame frame;
  frame.header = ReplyHeader(request);
  frame.header.flags |= flags;
  frame.body = std::move(body);
  frames_->Send(std::move(frame));
}

void LocalConnection::ReplyError(const FrameHeader& request, const Status& status) {
  if (frames_ != nullptr) frames_->SendError(request, status, fabric_.boot_epoch());
}

void LocalConnection::Close(const Status& why) {
  if (frames_ != nullptr) frames_->Close(why);
}

void LocalConnection::OnClosed(const Status& why) {
  frames_ = nullptr;
  incoming_.reset();
  staging_.reset();
  if (greeted_) {
    fabric_.CloseSession(session_);
    all_->environment.arena->OnSessionEnded(id_);
  }
  all_->metrics.CountFault(why);
  all_->Remove(id_);
}

}  // namespace kvfabric
