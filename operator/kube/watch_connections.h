#pragma once

// WatchConnections carries watches to their clients: each on its connection's own thread, woken by
// news, by a bookmark that is due, by the client's end, and by Stop.
//
// Owned by EmbeddedApiServer; any thread. Bounded by the server's long requests; a client that
// does not read is cut by the socket's write time-out, and one that reads too slowly gets 410.

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "operator/kube/watch_feed.h"

namespace kvfabric::kube {

class WatchConnections {
 public:
  // One watch on its way to a client.
  class Connection {
   public:
    Connection(WatchConnections& owner, UniqueFd wake, int client);
    ~Connection();
    Connection(const Connection&) = delete;  // registered by identity
    Connection& operator=(const Connection&) = delete;

    // What tells that the feed has something; outlives nothing but the connection.
    void Wake() const;
    void set_feed(std::unique_ptr<WatchFeed> feed) { feed_ = std::move(feed); }

    enum class Next : std::uint8_t { kSend, kEnd, kClientGone };
    // Waits until there is something to send, which it puts into `*text`; with kEnd the last.
    Next Wait(std::string* text);

   private:
    WatchConnections& owner_;  // outlives it
    const UniqueFd wake_;
    const int client_;                 // borrowed socket
    std::unique_ptr<WatchFeed> feed_;  // ends before the rest
  };

  WatchConnections() = default;
  WatchConnections(const WatchConnections&) = delete;  // connections point at it
  WatchConnections& operator=(const WatchConnections&) = delete;

  // `client`: the socket, to notice that the other side closed it.
  Result<std::shared_ptr<Connection>> Open(int client);
  // Ends all watches, and those that come later, in good order.
  void Stop() EXCLUDES(mu_);

 private:
  bool stopping() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return stopping_;
  }

  mutable Mutex mu_;
  std::set<const Connection*> open_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric::kube
