#pragma once

// Session: one connection to one agent after HELLO: identity, leases and mapped memory hang on it
// and go with it.
//
// Owned by shared_ptr: the client's current one, leases and views. Call, Release and the
// accessors may be used on any thread but the loop's; frames are handled on the loop. An agent
// from which nothing comes for kSilence although it was asked (PING) is given up. A retired
// session closes when nobody holds it any more. What the agent says is checked: an answer that
// does not fit its request ends the session. Bounds: Options::max_calls at once, staging_bytes of
// blocks on their way out, as many parts an answer as its request allows.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/loop_ref.h"
#include "client/mapped_memory.h"
#include "client/staging.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "transport/frame_connection.h"
#include "transport/local_messages.h"
#include "transport/socket_address.h"

namespace kvfabric {

// A block that came inside the reply (framed TCP).
struct InlineBlock {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  bool intact = false;  // the checksum of what arrived is the announced one
};

// One frame of an answer.
struct ReplyPart {
  std::string body;
  std::vector<InlineBlock> blocks{};  // in order of the body's kInline entries
};
struct CallReply {
  Status status;
  std::vector<ReplyPart> parts{};  // at least one when OK
};

struct CallOptions {
  // Lives until the agent answered or the session ended, even if we stop waiting.
  std::shared_ptr<const void> keep = nullptr;
  // The answer carries a new lease: when nobody waits for it any more it is released.
  bool gives_lease = false;
  // An answer in more parts than this is a fault.
  std::size_t max_parts = 1;
};

// A block that travels inside the request (framed TCP); `owner` is held until it is written.
struct CallPayload {
  ByteSpan bytes;
  std::uint64_t checksum = 0;
  std::shared_ptr<const void> owner;
};

class Session final : public FrameHandler, public std::enable_shared_from_this<Session> {
 public:
  static constexpr std::chrono::milliseconds kPingEvery{250};
  static constexpr std::chrono::milliseconds kSilence{1000};

  struct Options {
    wire::HelloRequest hello;
    SocketAddress address;
    std::size_t endpoint_index = 0;
    std::uint64_t staging_bytes = 0;  // 0 = never puts
    std::chrono::milliseconds connect_timeout{200};
    std::chrono::milliseconds hello_timeout{500};  // HELLO and STAGING
    std::size_t max_calls = 4096;
  };
  // Both run on the loop. `opened` exactly once: OK, or why not; `closed` once after an OK.
  struct Events {
    std::function<void(std::shared_ptr<Session>, Status)> opened;
    std::function<void(std::shared_ptr<Session>, Status)> closed;
  };
  // On the loop, which `ref` reaches too.
  static void Open(EventLoop& loop, std::shared_ptr<LoopRef> ref, Options options, Events events);

  ~Session() override;
  Session(const Session&) = delete;  // owns a connection
  Session& operator=(const Session&) = delete;

  bool alive() const { return alive_.load(std::memory_order_acquire); }
  std::uint64_t boot_epoch() const { return boot_epoch_.load(std::memory_order_relaxed); }
  std::uint64_t map_epoch() const { return map_epoch_.load(std::memory_order_relaxed); }
  std::size_t endpoint_index() const { return options_.endpoint_index; }
  bool local() const { return options_.address.is_unix(); }
  const MappedMemory& memory() const { return memory_; }
  // Where blocks lie until the agent has taken them; null when staging_bytes is 0.
  const std::shared_ptr<Staging>& staging() const { return staging_; }

  // Sends and waits. UNAVAILABLE when the session is gone, RESOURCE_EXHAUSTED at a bound of ours,
  // DEADLINE_EXCEEDED; else the agent's status.
  CallReply Call(FrameOp op, std::string body, Deadline deadline, CallOptions options = {})
      EXCLUDES(mu_);
  // A request whose payload is one block.
  CallReply CallWithPayload(FrameOp op, std::string body, CallPayload payload, Deadline deadline)
      EXCLUDES(mu_);
  // Fire and forget.
  void ReleaseLeases(std::vector<std::uint64_t> lease_ids);
  void Close();
  // On the loop: closes as soon as nobody but the connection holds it.
  void Retire() { retired_ = true; }

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override;
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override;
  void OnClosed(const Status& why) override;

 private:
  enum class Phase : std::uint8_t { kHello, kStaging, kOpen };
  struct PendingCall {
    FrameOp op = FrameOp::kError;
    CallOptions options{};
    CallReply reply{};       // the loop's until done
    bool abandoned = false;  // of mu_: nobody waits; a late answer is given back
    bool done = false;       // of mu_
    CondVar wake{};
  };
  using PendingRef = std::shared_ptr<PendingCall>;

  Session(EventLoop& loop, std::shared_ptr<LoopRef> ref, Options options, Events events);
  void OnConnected(std::unique_ptr<Stream> stream);
  Status Take(ReceivedFrame frame, std::vector<PayloadPart>& parts);
  Status OnHelloReply(const FrameHeader& header, ByteSpan body, std::vector<UniqueFd> fds);
  Status OnStagingReply(const FrameHeader& header, ByteSpan body);
  Status MapAll(const std::vector<wire::MemfdEntry>& memfds, std::vector<UniqueFd> fds);
  Status SendStaging();
  void BecomeOpen();
  // The agent said no in order: closes without an error frame.
  void Refused(const Status& why);
  Status OnCloseMemfd(ByteSpan body);
  Status OnReply(const FrameHeader& header, ByteSpan body, std::vector<PayloadPart>& parts);
  Status PlaceInline(const FrameHeader& header, ReplyPart& part, std::vector<PayloadPart>& parts);
  void GiveBack(FrameOp op, ByteSpan body);
  void Tick();
  void Send(OutgoingFrame frame);
  [[nodiscard]] bool Post(OutgoingFrame frame);
  CallReply Run(OutgoingFrame frame, Deadline deadline, const PendingRef& call) EXCLUDES(mu_);
  void Finish(const PendingRef& call, std::uint64_t id) EXCLUDES(mu_);
  void FailOpening(const Status& why);

  EventLoop& loop_;  // borrowed; only on the loop, which is there then
  const std::shared_ptr<LoopRef> ref_;
  const Options options_;
  MappedMemory memory_;
  std::shared_ptr<Staging> staging_;             // constant once alive
  std::atomic<bool> alive_{false};               // release on opening: all above is set
  std::atomic<std::uint64_t> boot_epoch_{0};     // constant once alive
  std::atomic<std::uint64_t> map_epoch_{0};      // only ever shown
  std::atomic<std::uint64_t> next_request_{16};  // unique numbers, nothing else

  // Loop thread.
  Events events_;
  std::shared_ptr<FrameConnection> connection_;
  Phase phase_ = Phase::kHello;
  EventLoop::TimerId timer_ = 0;
  bool retired_ = false;
  bool ping_waits_ = false;
  Clock::TimePoint silent_since_{};  // the later of the waiting PING and the last bytes seen
  std::uint64_t bytes_seen_ = 0;
  PendingRef arriving_;  // whose payload is being received, into the last part of its reply
  std::uint64_t arriving_id_ = 0;
  bool arriving_last_ = false;
  std::vector<std::uint64_t> expected_checksums_;

  Mutex mu_;
  bool closed_ GUARDED_BY(mu_) = false;
  std::unordered_map<std::uint64_t, PendingRef> pending_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
