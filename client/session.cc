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
  return options;
}
}  // namespace

void Session::Open(EventLoop& loop, Options options, Events events) {
  std::shared_ptr<Session> session(new Session(loop, std::move(options), std::move(events)));
  Connect(loop, session->options_.address, session->options_.connect_timeout, session->local(),
          [session](Result<std::unique_ptr<Stream>> stream) {
            if (!stream.ok()) return session->FailOpening(stream.status());
            session->OnConnected(*std::move(stream));
          });
}

Session::Session(EventLoop& loop, Options options, Events events)
    : loop_(loop), options_(std::move(options)), events_(std::move(events)) {}

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
  SendHello();
  const std::weak_ptr<Session> weak = weak_from_this();
  timer_ = loop_.RunAfter(options_.hello_timeout, [weak] {
    const auto self = weak.lock();
    if (self && !self->alive() && self->connection_) {
      self->connection_->Close(
          DeadlineExceeded("HELLO: no answer within " +
                           std::to_string(self->options_.hello_timeout.count()) + " ms"));
    }
  });
}

void Session::SendHello() {
  OutgoingFrame frame;
  frame.header.op = FrameOp::kHello;
  frame.header.request_id = kHelloId;
  frame.body = wire::Encode(options_.hello);
  connection_->Send(std::move(frame));
}

Status Session::OnHelloReply(const FrameHeader& header, ByteSpan body, std::vector<UniqueFd> fds) {
  if (header.status != StatusCode::kOk) return {header.status, std::string(AsText(body))};
  KVF_ASSIGN_OR_RETURN(const auto reply, wire::Decode<wire::HelloReply>(body));
  if (reply.version != wire::kLocalProtocolVersion) {
    return Unimplemented("HELLO: agent speaks version " + std::to_string(reply.version));
  }
  KVF_RETURN_IF_ERROR(MapAll(reply.memfds, std::move(fds)));
  boot_epoch_.store(header.boot_epoch, std::memory_order_relaxed);
  if (local() && options_.staging_bytes > 0) KVF_RETURN_IF_ERROR(SendStaging());
  alive_.store(true, std::memory_order_release);
  loop_.CancelTimer(timer_);
  timer_ = 0;
  Tick();
  if (auto opened = std::exchange(events_.opened, nullptr))
    opened(shared_from_this(), Status::Ok());
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
  KVF_ASSIGN_OR_RETURN(staging_, Staging::Create(options_.staging_bytes));
  OutgoingFrame frame;
  frame.header.op = FrameOp::kStaging;
  frame.header.request_id = kStagingId;
  frame.body = wire::Encode(wire::StagingRequest{staging_->size_bytes()});
  frame.descriptors.push_back(staging_->fd());
  connection_->Send(std::move(frame));
  return Status::Ok();
}

// One PING is under way at a time; an agent that is stopped answers none and is given up.
void Session::Tick() {
  if (!connection_ || connection_->closed()) return;
  const Clock::TimePoint now = Clock::System().Now();
  if (ping_waits_ && now - unanswered_since_ >= kSilence) {
    connection_->Close(Unavailable("no answer for " + std::to_string(kSilence.count()) + " ms"));
    return;
  }
  if (!ping_waits_) {
    ping_waits_ = true;
    unanswered_since_ = now;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kPing;
    frame.header.request_id = kPingId;
    connection_->Send(std::move(frame));
  }
  const std::weak_ptr<Session> weak = weak_from_this();
  timer_ = loop_.RunAfter(kPingEvery, [weak] {
    if (const auto self = weak.lock()) self->Tick();
  });
}

Status Session::OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
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
      if (header.status == StatusCode::kOk) return Status::Ok();
      return {header.status, "STAGING: " + std::string(AsText(frame.body))};
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
    self->Post(std::move(frame));
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
    abandoned = call->abandoned;
    if (abandoned && !header.more()) pending_.erase(found);
  }
  if (abandoned) {
    if (call->options.gives_lease) GiveBackLate(header, body);
    return Status::Ok();  // no parts: a payload is thrown away
  }
  // Until Finish the caller only waits, so that the reply is this thread's.
  if (header.status != StatusCode::kOk) {
    call->reply.status = Status(header.status, std::string(AsText(body)));
  } else {
    call->reply.bodies.emplace_back(AsText(body));
    if (header.op == FrameOp::kGet && header.payload_bytes > 0) {
      KVF_RETURN_IF_ERROR(PlaceInline(body, call->reply, parts));
      receiving_ = header.more() ? nullptr : call;
      return Status::Ok();
    }
  }
  if (!header.more()) Finish(call);
  return Status::Ok();
}

// Gives each inline block of a GET reply memory of its own.
Status Session::PlaceInline(ByteSpan body, CallReply& reply, std::vector<PayloadPart>& parts) {
  KVF_ASSIGN_OR_RETURN(const auto get, wire::Decode<wire::GetReply>(body));
  expected_checksums_.clear();
  for (const wire::GetEntry& entry : get.entries) {
    if (entry.place != wire::GetPlace::kInline) continue;
    InlineBlock block;
    block.size = entry.length;
    block.bytes.reset(new std::byte[std::max<std::size_t>(block.size, 1)]);
    parts.push_back({block.bytes.get(), block.size});
    expected_checksums_.push_back(entry.checksum);
    reply.inline_blocks.push_back(std::move(block));
  }
  placed_ = &reply;
  return Status::Ok();
}

Status Session::OnPayload(const std::vector<std::uint64_t>& checksums) {
  if (placed_ != nullptr && checksums.size() == expected_checksums_.size()) {
    const std::size_t first = placed_->inline_blocks.size() - checksums.size();
    for (std::size_t i = 0; i < checksums.size(); ++i) {
      placed_->inline_blocks[first + i].intact = checksums[i] == expected_checksums_[i];
    }
  }
  placed_ = nullptr;
  if (const PendingRef call = std::exchange(receiving_, nullptr)) Finish(call);
  return Status::Ok();
}

// Nobody waits for this answer any more; what it leased must not stay pinned for 10 s.
void Session::GiveBackLate(const FrameHeader& header, ByteSpan body) {
  if (header.status != StatusCode::kOk) return;
  std::uint64_t lease = 0;
  if (header.op == FrameOp::kLookup) {
    if (const auto reply = wire::Decode<wire::LookupReply>(body); reply.ok()) {
      lease = reply->lease_id;
    }
  } else if (const auto reply = wire::Decode<wire::GetReply>(body); reply.ok()) {
    lease = reply->lease_id;
  }
  if (lease != 0) ReleaseLease(lease);
}

void Session::Finish(const PendingRef& call) {
  MutexLock lock(mu_);
  call->done = true;
  call->wake.NotifyAll();
}

void Session::Post(OutgoingFrame frame) {
  const auto self = shared_from_this();
  auto shared = std::make_shared<OutgoingFrame>(std::move(frame));
  static_cast<void>(loop_.Submit([self, shared] {
    if (self->connection_) self->connection_->Send(std::move(*shared));
  }));
}

CallReply Session::Call(FrameOp op, std::string body, Deadline deadline, CallOptions options) {
  OutgoingFrame frame;
  frame.header.op = op;
  frame.body = std::move(body);
  auto call = std::make_shared<PendingCall>();
  call->options = std::move(options);
  return Run(std::move(frame), deadline, std::move(call));
}

CallReply Session::CallWithPayload(FrameOp op, std::string body, ByteSpan payload,
                                   std::uint64_t checksum, Deadline deadline) {
  // The caller's memory is free again when we return, maybe before the frame is out: copy it.
  auto copy = std::make_shared<std::vector<std::byte>>(payload.begin(), payload.end());
  OutgoingFrame frame;
  frame.header.op = op;
  frame.header.payload_checksum = checksum;
  frame.body = std::move(body);
  frame.payload.emplace_back(*copy);
  frame.payload_owner = copy;
  return Run(std::move(frame), deadline, std::make_shared<PendingCall>());
}

CallReply Session::Run(OutgoingFrame frame, Deadline deadline, PendingRef call) {
  const std::uint64_t id = next_request_.fetch_add(1, std::memory_order_relaxed);
  const auto left = deadline.Remaining(Clock::System());
  // The agent answers with what it has a little before we stop waiting.
  const auto margin = std::min(left / 8, std::chrono::milliseconds(3));
  frame.header.request_id = id;
  frame.header.remaining_ms =
      static_cast<std::uint32_t>(std::max<std::int64_t>((left - margin).count(), 1));
  {
    MutexLock lock(mu_);
    if (closed_) return {Unavailable("session: closed"), {}, {}};
    if (pending_.size() >= options_.max_calls) {
      return {ResourceExhausted("session: " + std::to_string(pending_.size()) +
                                " calls are under way (the limit)"),
              {},
              {}};
    }
    pending_.emplace(id, call);
  }
  Post(std::move(frame));
  MutexLock lock(mu_);
  while (!call->done) {
    if (!call->wake.WaitUntil(mu_, deadline.at()) && !call->done &&
        deadline.Passed(Clock::System())) {
      call->abandoned = true;  // stays in the table, with what it keeps, until answered or closed
      return {DeadlineExceeded("session: no answer by the deadline"), {}, {}};
    }
  }
  pending_.erase(id);
  return std::move(call->reply);
}

void Session::ReleaseLease(std::uint64_t lease_id) {
  if (!alive()) return;
  OutgoingFrame frame;
  frame.header.op = FrameOp::kRelease;
  frame.body = wire::Encode(wire::ReleaseRequest{{lease_id}});
  Post(std::move(frame));
}

void Session::Close() {
  const auto self = shared_from_this();
  static_cast<void>(loop_.Submit([self] {
    if (self->connection_) self->connection_->Close(Cancelled("session: closed by the client"));
  }));
}

void Session::OnClosed(const Status& why) {
  const auto self = shared_from_this();
  const bool was_alive = alive_.exchange(false, std::memory_order_acq_rel);
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = 0;
  connection_.reset();
  receiving_.reset();
  placed_ = nullptr;
  {
    MutexLock lock(mu_);
    closed_ = true;
    for (auto& [id, call] : pending_) {
      if (call->done) continue;
      call->reply = {
          Unavailable("session: " + (why.ok() ? std::string("closed") : why.message())), {}, {}};
      call->done = true;
      call->wake.NotifyAll();
    }
    pending_.clear();
  }
  const Status reason = why.ok() ? Unavailable("closed by the agent") : why;
  if (!was_alive) return FailOpening(reason);
  if (auto closed = std::exchange(events_.closed, nullptr)) closed(self, reason);
}

}  // namespace kvfabric
