#pragma once

// Session: one connection to one agent after HELLO: identity, leases and mapped memory hang on it
// and go with it.
//
// Owned by shared_ptr: the client's current one, leases and views. Call, Release and the
// accessors may be used on any thread but the loop's; frames are handled on the loop. An agent
// that does not answer a PING within kSilence is given up. Bound: Options::max_calls at once.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/mapped_memory.h"
#include "client/staging.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "transport/frame_connection.h"
#include "transport/local_messages.h"
#include "transport/socket_address.h"

namespace kvfabric {

// Bytes that came inside the reply (framed TCP).
struct InlineBlock {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  bool intact = false;  // the checksum of what arrived is the announced one
};

// All frames that answered one request.
struct CallReply {
  Status status;
  std::vector<std::string> bodies;         // one per frame
  std::vector<InlineBlock> inline_blocks;  // in order of the kInline entries
};

struct CallOptions {
  // Lives until the agent answered or the session ended, even if we stop waiting.
  std::shared_ptr<const void> keep;
  // The answer carries a new lease: when nobody waits for it any more it is released.
  bool gives_lease = false;
};

class Session final : public FrameHandler, public std::enable_shared_from_this<Session> {
 public:
  static constexpr std::chrono::milliseconds kPingEvery{250};
  static constexpr std::chrono::milliseconds kSilence{1000};

  struct Options {
    wire::HelloRequest hello;
    SocketAddress address;
    std::size_t endpoint_index = 0;
    std::uint64_t staging_bytes = 0;
    std::chrono::milliseconds connect_timeout{200};
    std::chrono::milliseconds hello_timeout{500};
    std::size_t max_calls = 4096;
  };
  // Both run on the loop. `opened` exactly once: OK, or why not; `closed` once after an OK.
  struct Events {
    std::function<void(std::shared_ptr<Session>, Status)> opened;
    std::function<void(std::shared_ptr<Session>, Status)> closed;
  };
  // On the loop.
  static void Open(EventLoop& loop, Options options, Events events);

  ~Session() override;
  Session(const Session&) = delete;  // owns a connection
  Session& operator=(const Session&) = delete;

  bool alive() const { return alive_.load(std::memory_order_acquire); }
  std::uint64_t boot_epoch() const { return boot_epoch_.load(std::memory_order_relaxed); }
  std::uint64_t map_epoch() const { return map_epoch_.load(std::memory_order_relaxed); }
  std::size_t endpoint_index() const { return options_.endpoint_index; }
  bool local() const { return options_.address.is_unix(); }
  const MappedMemory& memory() const { return memory_; }
  // Null over TCP.
  const std::shared_ptr<Staging>& staging() const { return staging_; }

  // Sends and waits. UNAVAILABLE when the session is gone, DEADLINE_EXCEEDED; else the agent's
  // status.
  CallReply Call(FrameOp op, std::string body, Deadline deadline, CallOptions options = {})
      EXCLUDES(mu_);
  // A request whose payload is one block.
  CallReply CallWithPayload(FrameOp op, std::string body, ByteSpan payload, std::uint64_t checksum,
                            Deadline deadline) EXCLUDES(mu_);
  // Fire and forget.
  void ReleaseLease(std::uint64_t lease_id);
  void Close();

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override;
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override;
  void OnClosed(const Status& why) override;

 private:
  struct PendingCall {
    CallOptions options;
    CallReply reply;
    bool abandoned = false;  // nobody waits; a late answer is given back
    bool done = false;
    CondVar wake;
  };
  using PendingRef = std::shared_ptr<PendingCall>;

  Session(EventLoop& loop, Options options, Events events);
  void OnConnected(std::unique_ptr<Stream> stream);
  void SendHello();
  Status OnHelloReply(const FrameHeader& header, ByteSpan body, std::vector<UniqueFd> fds);
  Status MapAll(const std::vector<wire::MemfdEntry>& memfds, std::vector<UniqueFd> fds);
  Status SendStaging();
  Status OnCloseMemfd(ByteSpan body);
  Status OnReply(const FrameHeader& header, ByteSpan body, std::vector<PayloadPart>& parts);
  Status PlaceInline(ByteSpan body, CallReply& reply, std::vector<PayloadPart>& parts);
  void GiveBackLate(const FrameHeader& header, ByteSpan body);
  void Tick();
  void Post(OutgoingFrame frame);
  CallReply Run(OutgoingFrame frame, Deadline deadline, PendingRef call) EXCLUDES(mu_);
  void Finish(const PendingRef& call) EXCLUDES(mu_);
  void FailOpening(const Status& why);

  EventLoop& loop_;  // borrowed; outlives this
  const Options options_;
  MappedMemory memory_;
  std::shared_ptr<Staging> staging_;
  std::atomic<bool> alive_{false};               // release on opening: all above is set
  std::atomic<std::uint64_t> boot_epoch_{0};     // constant once alive
  std::atomic<std::uint64_t> map_epoch_{0};      // only ever shown
  std::atomic<std::uint64_t> next_request_{16};  // unique numbers, nothing else

  // Loop thread.
  Events events_;
  std::shared_ptr<FrameConnection> connection_;
  EventLoop::TimerId timer_ = 0;
  Clock::TimePoint unanswered_since_{};
  bool ping_waits_ = false;
  PendingRef receiving_;         // whose last payload is arriving
  CallReply* placed_ = nullptr;  // where the arriving payload goes; of a call in pending_
  std::vector<std::uint64_t> expected_checksums_;

  Mutex mu_;
  bool closed_ GUARDED_BY(mu_) = false;
  std::unordered_map<std::uint64_t, PendingRef> pending_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
