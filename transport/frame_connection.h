#pragma once

// FrameConnection: frames both ways over one stream on one event loop.
//
// Made by Start; the loop shares ownership until it closes. Everything happens on the loop's
// thread. Bounds: above max_output_bytes queued it stops reading until half of it is gone, so
// that who does not read is not served; a frame that does not proceed, output that nobody takes
// and, when asked for, silence end the connection. What cannot be understood is counted by the
// handler (OnClosed) and answered by an error frame where a reply can be placed.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "transport/event_loop.h"
#include "transport/frame_receiver.h"
#include "transport/frame_sender.h"
#include "transport/stream.h"

namespace kvfabric {

// Who answers a connection's frames. Called on the loop only. The connection shares ownership
// until OnClosed has returned.
class FrameHandler : public FrameReader {
 public:
  // Once, last. OK = the other side closed in order; otherwise INVALID_ARGUMENT, UNIMPLEMENTED,
  // RESOURCE_EXHAUSTED: it spoke wrongly; DEADLINE_EXCEEDED: too slow; UNAVAILABLE: it went away;
  // CANCELLED: we closed.
  virtual void OnClosed(const Status& why) = 0;
  // The hand-shake is done and frames may flow; not called for plain streams.
  virtual void OnOpen() {}
};

class FrameConnection final : public EventLoop::FdHandler,
                              public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Options {
    FrameLimits limits{};
    std::size_t max_output_bytes = std::size_t{128} << 20U;
    std::chrono::milliseconds handshake_timeout{5'000};
    // From the first byte of a header to the last of its body.
    std::chrono::milliseconds slow_frame_timeout{10'000};
    // Without progress inside a payload, or of queued output.
    std::chrono::milliseconds stall_timeout{10'000};
    // Without any byte in either direction; 0 = for ever.
    std::chrono::milliseconds idle_timeout{0};
  };

  // On the loop. The connection closes by itself when the loop stops.
  static Result<std::shared_ptr<FrameConnection>> Start(EventLoop& loop,
                                                        std::unique_ptr<Stream> stream,
                                                        Options options,
                                                        std::shared_ptr<FrameHandler> handler);
  FrameConnection(const FrameConnection&) = delete;  // owns a socket
  FrameConnection& operator=(const FrameConnection&) = delete;

  // Queues a frame and writes what the socket takes. Ignored when closed or closing. The owner of
  // the payload is let go when its last byte is written or the connection closes.
  void Send(OutgoingFrame frame);
  // Answers `request` with a status and its text.
  void SendError(const FrameHeader& request, const Status& status, std::uint64_t boot_epoch = 0);
  // Stops reading before the next frame, e.g. while too many requests are in flight. Counted:
  // each Pause needs its Resume.
  void Pause();
  void Resume();
  // Another handler takes over from the next callback on, e.g. after the first frame told who
  // it is. May be called inside OnFrame. The old one gets no OnClosed.
  void SetHandler(std::shared_ptr<FrameHandler> handler, FrameLimits limits);
  void SetIdleTimeout(std::chrono::milliseconds timeout) { options_.idle_timeout = timeout; }
  // OnClosed(why) runs before this returns, unless closed already.
  void Close(const Status& why);
  // Reads no more, writes what is queued (within the stall time-out), then closes.
  void CloseAfterFlush(const Status& why);

  bool closed() const { return stream_ == nullptr; }
  EventLoop& loop() { return loop_; }
  const std::string& peer() const { return peer_; }
  // Of the stream (transport/stream.h), once it is open.
  std::string peer_identity() const { return stream_ ? stream_->peer_identity() : std::string(); }
  bool encrypted() const { return stream_ != nullptr && stream_->encrypted(); }
  std::size_t queued_bytes() const { return sender_.queued_bytes(); }
  std::uint64_t bytes_received() const { return receiver_.bytes(); }
  std::uint64_t bytes_sent() const { return sender_.bytes(); }

  void OnReady(std::uint32_t events) override;
  void OnLoopStop() override;

 private:
  // Forwards to whatever handler there is now: it may change inside a callback.
  class Dispatch final : public FrameReader {
   public:
    explicit Dispatch(FrameConnection& connection) : connection_(connection) {}
    Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override;
    Status OnPayload(const std::vector<std::uint64_t>& checksums) override;

   private:
    FrameConnection& connection_;
  };

  FrameConnection(EventLoop& loop, std::unique_ptr<Stream> stream, Options options,
                  std::shared_ptr<FrameHandler> handler);
  void ContinueHandshake();
  void Read();
  void AfterRead(const IoResult& read);
  void ReadSoon();
  void Write();
  void AfterFlush();
  void Drain();
  void Fail(const Status& why);
  void UpdateInterest();
  void SetOutputFull();
  void ScheduleCheck();
  Status CheckTime(Clock::TimePoint now) const;
  bool may_read() const { return pauses_ == 0 && !output_full_ && !closing_ && !handshaking_; }

  EventLoop& loop_;  // borrowed; outlives this
  Options options_;
  const std::string peer_;
  std::shared_ptr<Stream> stream_;  // null once closed; Read holds another reference
  std::shared_ptr<FrameHandler> handler_;
  Dispatch dispatch_;
  FrameReceiver receiver_;
  FrameSender sender_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId timer_ = 0;
  int pauses_ = 0;
  bool output_full_ = false;
  bool handshaking_ = true;
  bool in_read_ = false;
  bool handshake_wants_write_ = false;
  bool read_wants_write_ = false;  // TLS renegotiates keys
  bool write_wants_read_ = false;
  bool closing_ = false;   // flush, then close
  bool draining_ = false;  // flushed; takes and drops what comes, so that the peer reads our error
  bool read_soon_ = false;
  std::size_t drained_bytes_ = 0;
  Status close_reason_;
  Clock::TimePoint began_;  // of the connection, then of closing
  Clock::TimePoint last_received_;
  Clock::TimePoint last_sent_;    // progress of output
  Clock::TimePoint frame_began_;  // of the frame being received
  std::uint64_t frames_seen_ = 0;
};

}  // namespace kvfabric
