#pragma once

// BulkClient: the bulk connections to one peer, for as long as its session lasts. Fetches and
// pushes are spread over them. With TLS, blocks of pools that may travel in clear have connections
// of their own, made when the first is moved.
//
// Owned by a peer link; any thread may call; connections live on the event loops. Every
// completion runs exactly once, on a loop, the timer or the caller of Close: with all answers, by
// the deadline with what there is (DEADLINE_EXCEEDED when that is nothing), or with the reason
// when the connections are lost. After Close no sink runs. Bounds: blocks under way in one
// direction (max_items); more answer RESOURCE_EXHAUSTED.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "agent/service/bulk_tls.h"
#include "common/metrics.h"
#include "common/timer.h"
#include "transport/event_loop.h"
#include "transport/socket_address.h"

namespace kvfabric {

class BulkClient {
 public:
  struct Options {
    std::size_t connections = 2;
    std::chrono::milliseconds connect_timeout{500};
    std::chrono::milliseconds retry_after{100};  // a lost connection, while the session lasts
    std::size_t max_items = 16'384;
    BulkTls* tls = nullptr;       // null: all in clear; borrowed, outlives this
    std::string peer_identity{};  // that the peer's certificate must have
  };
  struct Environment {
    std::vector<EventLoop*> loops;
    Timer* timer = nullptr;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };
  class Core;

  BulkClient(Options options, Environment environment);
  ~BulkClient();                           // Shutdown
  BulkClient(const BulkClient&) = delete;  // owns connections
  BulkClient& operator=(const BulkClient&) = delete;

  // Connects and joins the session that gave `token`; ends what was open before. Generations grow
  // from 1; one that is over, or older than one that was opened, is ignored, so that opening and
  // closing may cross on two threads.
  void Open(std::uint64_t generation, const SocketAddress& peer, const std::string& token);
  void Close(std::uint64_t generation, const Status& why);
  // For good; connections are gone when it returns. Not from a loop of ours that waits for it.
  void Shutdown();

  void Fetch(std::string pool_uid, std::uint64_t lease_id, std::vector<FetchItem> items,
             FetchSink sink, Deadline deadline, Completion<FetchResult> done);
  void Push(std::string pool_uid, OfferReason reason, std::vector<PinnedBlock> blocks,
            Deadline deadline, Completion<PushResult> done);

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace kvfabric
