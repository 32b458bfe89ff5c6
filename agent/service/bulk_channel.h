#pragma once

// BulkChannel: one bulk connection to a peer, reconnected while its session lasts. Lives on one
// event loop; every method but the constructor runs there.
//
// What it was asked while not connected waits, at most kMaxWaiting requests; one whose job ends
// while it waits pins nothing any more, and makes room for the next. What was under way
// when the connection broke fails, item by item; nothing is sent twice.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/service/bulk_tls.h"
#include "agent/service/bulk_transfer.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "transport/frame_connection.h"
#include "transport/socket_address.h"

namespace kvfabric {

class BulkChannel final : public FrameHandler, public std::enable_shared_from_this<BulkChannel> {
 public:
  static constexpr std::size_t kMaxWaiting = 1024;

  struct Options {
    EventLoop* loop = nullptr;
    SocketAddress peer;
    std::string token;
    BulkTls* tls = nullptr;     // null: in clear
    std::string peer_identity;  // that the peer's certificate must have, with `tls`
    std::chrono::milliseconds connect_timeout{500};
    std::chrono::milliseconds retry_after{100};
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  explicit BulkChannel(Options options);

  EventLoop& loop() const { return *options_.loop; }
  // Any thread; a hint for choosing among channels.
  bool joined() const { return joined_.load(std::memory_order_relaxed); }

  void Connect();
  // `items` are indices into the job's.
  void Fetch(std::shared_ptr<BulkFetchJob> job, std::vector<std::size_t> items);
  void Push(std::shared_ptr<BulkPushJob> job, std::vector<std::size_t> items);
  void Close(const Status& why);

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override;
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override;
  void OnClosed(const Status& why) override;

 private:
  struct Waiting {
    std::shared_ptr<BulkFetchJob> fetch;  // one of both
    std::shared_ptr<BulkPushJob> push;
    std::vector<std::size_t> items;
  };
  struct FetchPart {
    std::shared_ptr<BulkFetchJob> job;
    std::vector<std::size_t> items;
    std::size_t next = 0;  // the holder answers in order
  };
  struct PushPart {
    std::shared_ptr<BulkPushJob> job;
    std::size_t item = 0;
  };
  struct Receiving {
    std::shared_ptr<BulkFetchJob> job;
    std::size_t item = 0;
    Reservation to;
  };

  Result<std::unique_ptr<Stream>> StreamOver(Result<UniqueFd> socket) const;
  void OnConnected(Result<std::unique_ptr<Stream>> stream);
  void Send(OutgoingFrame frame);
  void OnJoined();
  void RetryLater();
  void Start(Waiting waiting);
  void SendFetch(std::shared_ptr<BulkFetchJob> job, std::vector<std::size_t> items);
  void SendPushes(const std::shared_ptr<BulkPushJob>& job, const std::vector<std::size_t>& items);
  Status OnFetchReply(const ReceivedFrame& frame, std::vector<PayloadPart>& parts);
  void OnPushReply(const ReceivedFrame& frame);
  static BulkJob* JobOf(const Waiting& waiting);
  static void FailAll(const Waiting& waiting, const Status& why);

  const Options options_;
  Counter& received_bytes_;
  Counter& sent_bytes_;
  Counter& checksum_mismatches_;
  // Relaxed: a stale value only sends a request to a channel that makes it wait.
  std::atomic<bool> joined_ = false;

  // Loop thread.
  std::shared_ptr<FrameConnection> connection_;
  bool closed_ = false;
  std::uint64_t next_request_ = 1;
  std::deque<Waiting> waiting_;
  std::unordered_map<std::uint64_t, FetchPart> fetches_;
  std::unordered_map<std::uint64_t, PushPart> pushes_;
  std::optional<Receiving> receiving_;
};

}  // namespace kvfabric
