#include "client/session.h"

#include <algorithm>
#include <utility>

#include "transport/connector.h"

namespace kvfabric {

namespace {
constexpr std::uint64_t kHelloId = 1;
constexpr std::uint64_t kStagingId = 2;
constexpr std::uint64_t kPingId = 3;

FrameConnection::Options ConnectionOptions(bool local) {
  FrameConnection::Options options;
  options.limits.max_descriptors = local ? kMaxDescriptorsPerWrite : 0;
  if (local) options.limits.max_payload_bytes = 0;  // blocks are shown in place
  return options;
}

Status Misfit(std::string_view what) {
  return InvalidArgument("agent: answer: " + std::string(what));
}
}  // namespace

void Session::Open(EventLoop& loop, std::shared_ptr<LoopRef> ref, Options options, Events events) {
  std::shared_ptr<Session> session(
      new Session(loop, std::move(ref), std::move(options), std::move(events)));
  Connect(loop, session->options_.address, session->options_.connect_timeout, session->local(),
          [session](Result<std::unique_ptr<Stream>> stream) {
            if (!stream.ok()) return session->FailOpening(stream.status());
            session->OnConnected(*std::move(stream));
          });
}

Session::Session(EventLoop& loop, std::shared_ptr<LoopRef> ref, Options options, Events events)
    : loop_(loop), ref_(std::move(ref)), options_(std::move(options)), events_(std::move(events)) {}

Session::~Session() = default;

void Session::FailOpening(const Status& why) {
  auto opened = std::exchange(events_.opened, nullptr);
  events_.closed = nullptr;
  if (opened) opened(nullptr, why);
}

void Session::OnConnected(std::unique_ptr<Stream> stream) {
  auto connection = FrameConnection::Start(loop_, std::move(stream), ConnectionOptions(local()),
                                           shared_from_this());
  if (!connection.ok()) return FailOpening(connection.status());
  if ((*connection)->closed()) return;  // OnClosed has told
  connection_ = *std::move(connection);
  const std::weak_ptr<Session> weak = weak_from_this();
  timer_ = loop_.RunAfter(options_.hello_timeout, [weak] {
    const auto self = weak.lock();
    if (!self || self->phase_ == Phase::kOpen || !self->connection_) return;
    self->timer_ = 0;
    self->connection_->Close(DeadlineExceeded("HELLO: no answer (limit " +
                                              std::to_string(self->options_.hello_timeout.count()) +
                                              " ms)"));
  });
  OutgoingFrame frame;
  frame.header.op = FrameOp::kHello;
  frame.header.request_id = kHelloId;
  frame.header.remaining_ms = static_cast<std::uint32_t>(options_.hello_timeout.count());
  frame.body = wire::Encode(options_.hello);
  Send(std::move(frame));
}

// The connection may close, and let go of itself, inside Send.
void Session::Send(OutgoingFrame frame) {
  if (const auto connection = connection_) connection->Send(std::move(frame));
}

Status Session::OnHelloReply(const FrameHeader& header, ByteSpan body, std::vector<UniqueFd> fds) {
  if (phase_ != Phase::kHello) return Misfit("a second one to HELLO");
  if (header.status != StatusCode::kOk) {
    Refused({header.status, std::string(AsText(body))});
    return Status::Ok();
  }
  KVF_ASSIGN_OR_RETURN(const auto reply, wire::Decode<wire::HelloReply>(body));
  if (reply.version != wire::kLocalProtocolVersion) {
    return Unimplemented("HELLO: agent speaks version " + std::to_string(reply.version) +
                         " (this library speaks " + std::to_string(wire::kLocalProtocolVersion) +
                         ")");
  }
  KVF_RETURN_IF_ERROR(MapAll(reply.memfds, std::move(fds)));
  boot_epoch_.store(header.boot_epoch, std::memory_order_relaxed);
  if (options_.staging_bytes > 0) {
    KVF_ASSIGN_OR_RETURN(staging_, Staging::Create(options_.staging_bytes));
    if (local()) return SendStaging();
  }
  BecomeOpen();
  return Status::Ok();
}

Status Session::MapAll(const std::vector<wire::MemfdEntry>& memfds, std::vector<UniqueFd> fds) {
  if (memfds.size() != fds.size()) {
    return InvalidArgument("memfds: " + std::to_string(memfds.size()) + " announced, " +
                           std::to_string(fds.size()) + " descriptors came");
  }
  for (std::size_t i = 0; i < memfds.size(); ++i) {
    KVF_RETURN_IF_ERROR(memory_.Add(memfds[i].id, memfds[i].size_bytes, std::move(fds[i])));
  }
  return Status::Ok();
}

Status Session::SendStaging() {
  phase_ = Phase::kStaging;
  OutgoingFrame frame;
  frame.header.op = FrameOp::kStaging;
  frame.header.request_id = kStagingId;
  frame.header.remaining_ms = static_cast<std::uint32_t>(options_.hello_timeout.count());
  frame.body = wire::Encode(wire::StagingRequest{staging_->size_bytes()});
  frame.descriptors.push_back(staging_->fd());
  Send(std::move(frame));
  return Status::Ok();
}

Status Session::OnStagingReply(const FrameHeader& header, ByteSpan body) {
  if (phase_ != Phase::kStaging) return Misfit("one to no STAGING");
  if (header.status != StatusCode::kOk) {
    Refused({header.status, "STAGING: " + std::string(AsText(body))});
  } else {
    BecomeOpen();
  }
  return Status::Ok();
}

void Session::BecomeOpen() {
  phase_ = Phase::kOpen;
  alive_.store(true, std::memory_order_release);
  loop_.CancelTimer(timer_);
  timer_ = 0;
  if (auto opened = std::exchange(events_.opened, nullptr)) {
    opened(shared_from_this(), Status::Ok());
  }
  Tick();
}

void Session::Refused(const Status& why) {
  if (const auto connection = connection_) connection->Close(why);
}

// One PING is under way at a time; an agent that is stopped answers none and is given up. Bytes of
// other answers count too: the PING's may queue behind many.
void Session::Tick() {
  timer_ = 0;
  const auto connection = connection_;
  if (!connection || connection->closed()) return;
  // The timer that runs this and the connection.
  constexpr long kOwnReferences = 2;
  if (retired_ && weak_from_this().use_count() <= kOwnReferences) {
    connection->Close(Cancelled("session: replaced by one with an earlier endpoint"));
    return;
  }
  const Clock::TimePoint now = Clock::System().Now();
  if (const std::uint64_t bytes = connection->bytes_received(); bytes != bytes_seen_) {
    bytes_seen_ = bytes;
    silent_since_ = now;
  }
  if (ping_waits_ && now - silent_since_ >= kSilence) {
    connection->Close(Unavailable("no answer for " + std::to_string(kSilence.count()) + " ms"));
    return;
  }
  if (!ping_waits_) {
    ping_waits_ = true;
    silent_since_ = now;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kPing;
    frame.header.request_id = kPingId;
    frame.header.remaining_ms = static_cast<std::uint32_t>(kSilence.count());
    connection->Send(std::move(frame));
    if (connection->closed()) return;
  }
  const std::weak_ptr<Session> weak = weak_from_this();
  timer_ = loop_.RunAfter(kPingEvery, [weak] {
    if (const auto self = weak.lock()) self->Tick();
  });
}

Status Session::OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
  const Status status = Take(std::move(frame), parts);
  if (!status.ok()) {
    // Nothing may go on from what was half understood. Not with an error frame: calls that are
    // under way must not wait for its delivery.
    parts.clear();
    if (const auto connection = connection_) connection->Close(status);
  }
  return status;
}

Status Session::Take(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
  const FrameHeader& header = frame.header;
  if (header.map_epoch != 0) map_epoch_.store(header.map_epoch, std::memory_order_relaxed);
  if (header.op == FrameOp::kError) {
    return {header.status == StatusCode::kOk ? StatusCode::kInternal : header.status,
            "agent: " + std::string(AsText(frame.body))};
  }
  if (!header.reply()) {
    if (header.op == FrameOp::kCloseMemfd) return OnCloseMemfd(frame.body);
    if (header.op != FrameOp::kNewMemfd) return Status::Ok();  // a later version's news
    KVF_ASSIGN_OR_RETURN(const auto fresh, wire::Decode<wire::NewMemfd>(frame.body));
    return MapAll(fresh.memfds, std::move(frame.descriptors));
  }
  switch (header.request_id) {
    case kHelloId:
      return OnHelloReply(header, frame.body, std::move(frame.descriptors));
    case kStagingId:
      return OnStagingReply(header, frame.body);
    case kPingId:
      ping_waits_ = false;
      return Status::Ok();
    default:
      return OnReply(header, frame.body, parts);
  }
}

Status Session::OnCloseMemfd(ByteSpan body) {
  KVF_ASSIGN_OR_RETURN(const auto message, wire::Decode<wire::CloseMemfd>(body));
  const std::weak_ptr<Session> weak = weak_from_this();
  memory_.Close(message.id, [weak, message] {
    const auto self = weak.lock();
    if (!self) return;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kCloseMemfd;
    frame.header.flags = kFrameReply;
    frame.body = wire::Encode(message);
    static_cast<void>(self->Post(std::move(frame)));  // refused: the session is at its end
  });
  return Status::Ok();
}

Status Session::OnReply(const FrameHeader& header, ByteSpan body, std::vector<PayloadPart>& parts) {
  PendingRef call;
  bool abandoned = false;
  {
    MutexLock lock(mu_);
    const auto found = pending_.find(header.request_id);
    if (found == pending_.end()) return Status::Ok();
    call = found->second;
    if (call->done) return Misfit("a second one");
    abandoned = call->abandoned;
    if (abandoned && !header.more()) pending_.erase(found);
  }
  if (header.op != call->op) return Misfit("of another operation");
  if (abandoned) {
    if (call->options.gives_lease && !header.more() && header.status == StatusCode::kOk) {
      GiveBack(header.op, body);
    }
    return Status::Ok();  // no parts: a payload is thrown away
  }
  // Until Finish the caller only waits, so that the reply is this thread's.
  if (header.status != StatusCode::kOk) {
    call->reply.status = Status(header.status, std::string(AsText(body)));
  } else {
    if (call->reply.parts.size() >= call->options.max_parts) return Misfit("in too many parts");
    ReplyPart& part = call->reply.parts.emplace_back();
    part.body.assign(AsText(body));
    if (header.op == FrameOp::kGet && !local()) {
      KVF_RETURN_IF_ERROR(PlaceInline(header, part, parts));
    }
  }
  if (!parts.empty()) {
    arriving_ = call;
    arriving_id_ = header.request_id;
    arriving_last_ = !header.more();
  } else if (!header.more()) {
    Finish(call, header.request_id);
  }
  return Status::Ok();
}

// Gives each inline block of a GET reply memory of its own.
Status Session::PlaceInline(const FrameHeader& header, ReplyPart& part,
                            std::vector<PayloadPart>& parts) {
  KVF_ASSIGN_OR_RETURN(const auto get, wire::Decode<wire::GetReply>(AsBytes(part.body)));
  expected_checksums_.clear();
  std::uint64_t left = header.payload_bytes;
  for (const wire::GetEntry& entry : get.entries) {
    if (entry.place != wire::GetPlace::kInline) continue;
    if (entry.length == 0 || entry.length > left) return Misfit("blocks are not its payload");
    left -= entry.length;
    InlineBlock& block = part.blocks.emplace_back();
    block.size = entry.length;
    block.bytes.reset(new std::byte[block.size]);
    parts.push_back({block.bytes.get(), block.size});
    expected_checksums_.push_back(entry.checksum);
  }
  return left == 0 ? Status::Ok() : Misfit("payload is more than its blocks");
}

Status Session::OnPayload(const std::vector<std::uint64_t>& checksums) {
  const PendingRef call = std::exchange(arriving_, nullptr);
  if (!call) return Status::Ok();  // nobody's: thrown away
  std::vector<InlineBlock>& blocks = call->reply.parts.back().blocks;
  for (std::size_t i = 0; i < blocks.size() && i < checksums.size(); ++i) {
    blocks[i].intact = checksums[i] == expected_checksums_[i];
  }
  if (arriving_last_) Finish(call, arriving_id_);
  return Status::Ok();
}

// Nobody waits for this answer any more; what it leased must not stay pinned for 10 s.
void Session::GiveBack(FrameOp op, ByteSpan body) {
  std::uint64_t lease = 0;
  if (op == FrameOp::kLookup) {
    if (const auto reply = wire::Decode<wire::LookupReply>(body); reply.ok()) {
      lease = reply->lease_id;
    }
  } else if (const auto reply = wire::Decode<wire::GetReply>(body); reply.ok()) {
    lease = reply->lease_id;
  }
  if (lease != 0) ReleaseLeases({lease});
}

// The caller may have stopped waiting while the answer was being taken apart.
void Session::Finish(const PendingRef& call, std::uint64_t id) {
  {
    MutexLock lock(mu_);
    if (!call->abandoned) {
      call->done = true;
      call->wake.NotifyAll();
      return;
    }
    pending_.erase(id);
  }
  if (call->options.gives_lease && !call->reply.parts.empty()) {
    GiveBack(call->op, AsBytes(call->reply.parts.back().body));
  }
}

bool Session::Post(OutgoingFrame frame) {
  const auto self = shared_from_this();
  auto shared = std::make_shared<OutgoingFrame>(std::move(frame));
  return ref_->Submit([self, shared] { self->Send(std::move(*shared)); });
}

CallReply Session::Call(FrameOp op, std::string body, Deadline deadline, CallOptions options) {
  OutgoingFrame frame;
  frame.header.op = op;
  frame.body = std::move(body);
  auto call = std::make_shared<PendingCall>();
  call->options = std::move(options);
  return Run(std::move(frame), deadline, call);
}

CallReply Session::CallWithPayload(FrameOp op, std::string body, CallPayload payload,
                                   Deadline deadline) {
  OutgoingFrame frame;
  frame.header.op = op;
  frame.header.payload_checksum = payload.checksum;
  frame.body = std::move(body);
  frame.payload.push_back(payload.bytes);
  frame.payload_owner = std::move(payload.owner);
  return Run(std::move(frame), deadline, std::make_shared<PendingCall>());
}

CallReply Session::Run(OutgoingFrame frame, Deadline deadline, const PendingRef& call) {
  const std::uint64_t id = next_request_.fetch_add(1, std::memory_order_relaxed);
  const auto left = deadline.Remaining(Clock::System());
  // The agent answers with what it has a little before we stop waiting.
  const auto margin = std::min(left / 8, std::chrono::milliseconds(3));
  frame.header.request_id = id;
  frame.header.remaining_ms =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>((left - margin).count(), 1, 0xFFFFFFFF));
  call->op = frame.header.op;
  {
    MutexLock lock(mu_);
    if (closed_) return {Unavailable("session: closed")};
    if (pending_.size() >= options_.max_calls) {
      return {ResourceExhausted("session: " + std::to_string(pending_.size()) +
                                " calls are under way (the limit)")};
    }
    pending_.emplace(id, call);
  }
  const bool posted = Post(std::move(frame));
  MutexLock lock(mu_);
  if (!posted && !call->done) {
    pending_.erase(id);
    return {ResourceExhausted("session: the client's loop takes no more")};
  }
  while (!call->done) {
    if (!call->wake.WaitUntil(mu_, deadline.at()) && !call->done) {
      call->abandoned = true;  // stays in the table, with what it keeps, until answered or closed
      return {DeadlineExceeded("session: no answer by the deadline")};
    }
  }
  pending_.erase(id);
  return std::move(call->reply);
}

void Session::ReleaseLeases(std::vector<std::uint64_t> lease_ids) {
  if (!alive() || lease_ids.empty()) return;
  OutgoingFrame frame;
  frame.header.op = FrameOp::kRelease;
  frame.body = wire::Encode(wire::ReleaseRequest{std::move(lease_ids)});
  static_cast<void>(Post(std::move(frame)));  // refused: the session is at its end
}

void Session::Close() {
  const auto self = shared_from_this();
  static_cast<void>(ref_->Submit([self] {
    if (const auto connection = self->connection_) {
      connection->Close(Cancelled("session: closed by the client"));
    }
  }));
}

void Session::OnClosed(const Status& why) {
  const auto self = shared_from_this();
  const Status reason = why.ok() ? Unavailable("closed by the agent") : why;
  // First of all: who hears of the end from a call must not find this session current any more.
  if (!alive()) {
    FailOpening(reason);
  } else if (auto closed = std::exchange(events_.closed, nullptr)) {
    closed(self, reason);
  }
  alive_.store(false, std::memory_order_release);
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
  connection_.reset();
  arriving_.reset();
  // The agent may be stopped in the middle of a copy: what it reads must not be written again.
  if (staging_) staging_->Close();
  std::unordered_map<std::uint64_t, PendingRef> ended;
  {
    MutexLock lock(mu_);
    closed_ = true;
    ended.swap(pending_);
    for (auto& [id, call] : ended) {
      if (call->done) continue;
      call->reply = {Unavailable("session: " + reason.message())};
      call->done = true;
      call->wake.NotifyAll();
    }
  }
}

}  // namespace kvfabric
