#include "transport/frame_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvfabric {

namespace {

// Per turn and connection, so that one busy peer does not starve the others of its loop.
constexpr std::size_t kReadBudgetBytes = std::size_t{4} << 20U;
// After an error frame: how long and how much we still take before the socket goes. Closing with
// unread bytes would reset a TCP connection and could destroy the error on its way.
constexpr std::chrono::milliseconds kDrainTime{1'000};
constexpr std::size_t kDrainBytes = std::size_t{8} << 20U;

bool WorthAnErrorFrame(const Status& why) {
  return why.code() != StatusCode::kUnavailable && why.code() != StatusCode::kCancelled &&
         why.code() != StatusCode::kInternal && !why.ok();
}

}  // namespace

Status FrameConnection::Dispatch::OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
  const std::shared_ptr<FrameHandler> handler = connection_.handler_;
  return handler ? handler->OnFrame(std::move(frame), parts) : Status::Ok();
}

Status FrameConnection::Dispatch::OnPayload(const std::vector<std::uint64_t>& checksums) {
  const std::shared_ptr<FrameHandler> handler = connection_.handler_;
  return handler ? handler->OnPayload(checksums) : Status::Ok();
}

FrameConnection::FrameConnection(EventLoop& loop, std::unique_ptr<Stream> stream, Options options,
                                 std::shared_ptr<FrameHandler> handler)
    : loop_(loop),
      options_(options),
      peer_(stream->peer()),
      stream_(std::move(stream)),
      handler_(std::move(handler)),
      dispatch_(*this),
      receiver_(options.limits),
      began_(Clock::System().Now()),
      last_received_(began_),
      last_sent_(began_),
      frame_began_(began_) {}

Result<std::shared_ptr<FrameConnection>> FrameConnection::Start(
    EventLoop& loop, std::unique_ptr<Stream> stream, Options options,
    std::shared_ptr<FrameHandler> handler) {
  KVF_DCHECK(loop.InLoop(), "a connection starts on its loop");
  std::shared_ptr<FrameConnection> connection(
      new FrameConnection(loop, std::move(stream), options, std::move(handler)));
  KVF_ASSIGN_OR_RETURN(connection->watch_,
                       loop.Watch(connection->stream_->fd(), EPOLLIN, connection));
  connection->ScheduleCheck();
  connection->ContinueHandshake();
  return connection;
}

void FrameConnection::ContinueHandshake() {
  const IoResult result = stream_->Handshake();
  handshake_wants_write_ = result.state == IoState::kWantWrite;
  switch (result.state) {
    case IoState::kDone:
      handshaking_ = false;
      handler_->OnOpen();
      if (!sender_.empty()) Write();
      if (!closed() && stream_->HasBuffered()) ReadSoon();
      break;
    case IoState::kWantRead:
    case IoState::kWantWrite:
      break;
    case IoState::kClosed:
      Close(Unavailable(peer_ + ": hand-shake: closed by the other end"));
      break;
    case IoState::kFailed:
      Close(result.status);
      break;
  }
  UpdateInterest();
}

void FrameConnection::OnReady(std::uint32_t events) {
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  if (closed()) return;
  const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
  if (handshaking_) {
    ContinueHandshake();
    return;
  }
  if (draining_) {
    Drain();
    return;
  }
  if ((events & EPOLLOUT) != 0 || (write_wants_read_ && (events & EPOLLIN) != 0)) Write();
  if (closed() || draining_) return;
  if (may_read() &&
      ((events & EPOLLIN) != 0 || broken || (read_wants_write_ && (events & EPOLLOUT) != 0))) {
    Read();
  } else if (broken) {
    // Nobody is there to read our answers; epoll would report this for ever.
    Close(closing_ ? close_reason_ : Unavailable(peer_ + ": hung up"));
  }
}

void FrameConnection::Read() {
  if (in_read_) return;
  const std::shared_ptr<Stream> stream = stream_;  // Close inside a callback must not free it
  in_read_ = true;
  receiver_.set_paused(false);
  const bool was_mid_frame = receiver_.mid_frame();
  const IoResult read = receiver_.Pump(*stream, dispatch_, kReadBudgetBytes);
  in_read_ = false;
  if (closed()) return;
  const auto now = Clock::System().Now();
  if (read.bytes > 0) last_received_ = now;
  if (!was_mid_frame || frames_seen_ != receiver_.frames()) frame_began_ = now;
  frames_seen_ = receiver_.frames();
  AfterRead(read);
}

void FrameConnection::AfterRead(const IoResult& read) {
  read_wants_write_ = read.state == IoState::kWantWrite;
  switch (read.state) {
    case IoState::kDone:  // out of budget, or paused
      if (may_read() && stream_->HasBuffered()) ReadSoon();
      break;
    case IoState::kWantRead:
    case IoState::kWantWrite:
      break;
    case IoState::kClosed:
      if (!closing_) {
        // Answers to what it asked last may still be wanted by one that shut down its writing
        // half only; ours never do, and a lease must not wait for them.
        Close(Status::Ok());
        return;
      }
      break;
    case IoState::kFailed:
      Fail(read.status);
      return;
  }
  if (!sender_.empty() || closing_) Write();
  if (!closed()) UpdateInterest();
}

void FrameConnection::ReadSoon() {
  if (read_soon_) return;
  read_soon_ = true;
  loop_.RunAfter(Clock::Duration::zero(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->read_soon_ = false;
    if (!self->closed() && self->may_read()) self->Read();
  });
}

void FrameConnection::Send(OutgoingFrame frame) {
  if (closed() || closing_) return;
  if (sender_.empty()) last_sent_ = Clock::System().Now();
  sender_.Enqueue(std::move(frame));
  // Answers given while reading go out together.
  if (in_read_ || handshaking_) {
    SetOutputFull();
    return;
  }
  Write();
}

void FrameConnection::SendError(const FrameHeader& request, const Status& status,
                                std::uint64_t boot_epoch) {
  OutgoingFrame frame;
  frame.header.op = request.op;
  frame.header.flags = kFrameReply;
  frame.header.request_id = request.request_id;
  frame.header.status = status.code();
  frame.header.boot_epoch = boot_epoch;
  frame.body = status.message();
  Send(std::move(frame));
}

void FrameConnection::Write() {
  const std::size_t before = sender_.queued_bytes();
  const IoResult written = sender_.Flush(*stream_);
  if (sender_.queued_bytes() != before) last_sent_ = Clock::System().Now();
  write_wants_read_ = written.state == IoState::kWantRead;
  if (written.state == IoState::kClosed || written.state == IoState::kFailed) {
    Close(closing_ ? close_reason_
                   : (written.status.ok() ? Unavailable(peer_ + ": closed") : written.status));
    return;
  }
  SetOutputFull();
  AfterFlush();
}

void FrameConnection::AfterFlush() {
  if (closed()) return;
  if (closing_ && sender_.empty() && !draining_) {
    draining_ = true;
    began_ = Clock::System().Now();
    static_cast<void>(::shutdown(stream_->fd(), SHUT_WR));
    Drain();
    if (closed()) return;
  }
  UpdateInterest();
}

void FrameConnection::Drain() {
  std::array<std::byte, 4096> scratch;
  const iovec into{scratch.data(), scratch.size()};
  while (drained_bytes_ < kDrainBytes) {
    const IoResult read = stream_->Read({&into, 1});
    drained_bytes_ += read.bytes;
    for (const UniqueFd& unwanted : stream_->TakeDescriptors()) static_cast<void>(unwanted);
    if (read.state == IoState::kWantRead || read.state == IoState::kWantWrite) return;
    if (read.state != IoState::kDone) break;
  }
  Close(close_reason_);
}

void FrameConnection::SetOutputFull() {
  const std::size_t queued = sender_.queued_bytes();
  if (!output_full_ && queued > options_.max_output_bytes) {
    output_full_ = true;
    receiver_.set_paused(true);
  } else if (output_full_ && queued <= options_.max_output_bytes / 2) {
    output_full_ = false;
    if (may_read()) ReadSoon();
  }
}

void FrameConnection::Pause() {
  ++pauses_;
  receiver_.set_paused(true);
  if (!in_read_) UpdateInterest();
}

void FrameConnection::Resume() {
  KVF_DCHECK(pauses_ > 0, "Resume without Pause");
  --pauses_;
  if (closed() || !may_read()) return;
  if (in_read_) {
    receiver_.set_paused(false);
    return;
  }
  frame_began_ = last_received_ = Clock::System().Now();  // the pause was ours
  ReadSoon();
  UpdateInterest();
}

void FrameConnection::SetHandler(std::shared_ptr<FrameHandler> handler, FrameLimits limits) {
  handler_ = std::move(handler);
  receiver_.limits() = limits;
}

void FrameConnection::Fail(const Status& why) {
  if (WorthAnErrorFrame(why)) {
    FrameHeader fault;
    fault.op = FrameOp::kError;
    fault.request_id = receiver_.request_id();
    SendError(fault, why);
    if (closed()) return;
    CloseAfterFlush(why);
    return;
  }
  Close(why);
}

void FrameConnection::CloseAfterFlush(const Status& why) {
  if (closed() || closing_) return;
  closing_ = true;
  close_reason_ = why;
  receiver_.set_paused(true);
  last_sent_ = Clock::System().Now();
  if (handshaking_) {
    Close(why);
  } else if (!in_read_) {
    AfterFlush();
  }
}

void FrameConnection::Close(const Status& why) {
  if (closed()) return;
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  receiver_.Abort();
  loop_.Unwatch(watch_);
  loop_.CancelTimer(timer_);
  stream_.reset();
  sender_ = FrameSender{};
  const std::shared_ptr<FrameHandler> handler = std::move(handler_);
  handler->OnClosed(why);
}

void FrameConnection::OnLoopStop() { Close(Cancelled(peer_ + ": closed: this process ends")); }

void FrameConnection::UpdateInterest() {
  if (closed()) return;
  std::uint32_t events = 0;
  if (may_read() || draining_ || write_wants_read_ || (handshaking_ && !handshake_wants_write_)) {
    events |= EPOLLIN;
  }
  if ((!sender_.empty() && !write_wants_read_ && !handshaking_) || read_wants_write_ ||
      handshake_wants_write_) {
    events |= EPOLLOUT;
  }
  loop_.Rearm(watch_, events);
}

void FrameConnection::ScheduleCheck() {
  auto shortest = std::min({options_.handshake_timeout, options_.slow_frame_timeout,
                            options_.stall_timeout, kDrainTime});
  if (options_.idle_timeout.count() > 0) shortest = std::min(shortest, options_.idle_timeout);
  const auto period =
      std::clamp(shortest / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(500));
  timer_ = loop_.RunAfter(period, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->closed()) return;
    const Status late = self->CheckTime(Clock::System().Now());
    if (!late.ok()) {
      if (self->closing_) {
        self->Close(self->close_reason_);
      } else if (self->handshaking_ || !self->sender_.empty()) {
        self->Close(late);
      } else {
        self->Fail(late);
      }
    }
    if (!self->closed()) self->ScheduleCheck();
  });
}

Status FrameConnection::CheckTime(Clock::TimePoint now) const {
  const auto late = [&](std::string_view what, std::chrono::milliseconds limit) {
    return DeadlineExceeded(peer_ + ": " + std::string(what) + " (limit " +
                            std::to_string(limit.count()) + " ms)");
  };
  if (handshaking_ && now - began_ > options_.handshake_timeout) {
    return late("hand-shake: not done", options_.handshake_timeout);
  }
  if (draining_ && now - began_ > kDrainTime) return late("close: not taken", kDrainTime);
  if (!sender_.empty() && now - last_sent_ > options_.stall_timeout) {
    return late("send: nobody takes our output", options_.stall_timeout);
  }
  if (may_read() && receiver_.mid_frame()) {
    if (receiver_.in_payload()) {
      if (now - last_received_ > options_.stall_timeout) {
        return late("receive: payload without progress", options_.stall_timeout);
      }
    } else if (now - frame_began_ > options_.slow_frame_timeout) {
      return late("receive: frame not complete", options_.slow_frame_timeout);
    }
  }
  if (options_.idle_timeout.count() > 0 && pauses_ == 0 &&
      now - std::max(last_received_, last_sent_) > options_.idle_timeout) {
    return late("idle", options_.idle_timeout);
  }
  return Status::Ok();
}

}  // namespace kvfabric
