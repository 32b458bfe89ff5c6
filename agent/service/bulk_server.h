#pragma once

// BulkServer: the port where peers fetch and push blocks. A connection says first which peer
// session it belongs to (the token that the session's hello gave) and ends with that session.
// A first frame that is not a join goes to whoever serves clients over framed TCP.
//
// Owned by main; what it borrows outlives it. Any thread may call; connections live on the event
// loops. Fetched bytes go out of pinned memory; pushed bytes are received straight into the
// reservation, hashed piece by piece, and committed when the checksum holds: a connection that
// ends in the middle leaves nothing. Bounds: frames (docs/formats/frame.md), connections.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "agent/service/bulk_tls.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "transport/frame_connection.h"
#include "transport/listener.h"

namespace kvfabric {

class BulkServer {
 public:
  // Takes over the connection with SetHandler and answers `first`; an error closes it.
  using ClientHandler =
      std::function<Status(FrameConnection& connection, const ReceivedFrame& first)>;
  struct Options {
    std::string host = "127.0.0.1";  // numeric
    std::uint16_t port = 0;          // 0 = any free one
    std::size_t max_connections = 4096;
    ClientHandler on_client = nullptr;  // none: such connections are refused
    // Null: all in clear. Otherwise the port takes both, and only pools that may travel in clear
    // do so.
    BulkTls* tls = nullptr;
  };
  struct Environment {
    PeerHandler* handler = nullptr;
    std::vector<EventLoop*> loops;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
  };

  // FAILED_PRECONDITION when the port is taken, with the address in the text.
  static Result<std::unique_ptr<BulkServer>> Listen(Options options, Environment environment);
  ~BulkServer();                           // before the loops stop; closes all connections
  BulkServer(const BulkServer&) = delete;  // connections point to its state
  BulkServer& operator=(const BulkServer&) = delete;

  std::uint16_t port() const;
  // 16 random bytes that connections of this session join with. Over TLS only from the holder of
  // `identity`, where one is given.
  std::string AddSession(PeerHandler::SessionId session, std::string identity = {});
  // Its connections close; its token is worth nothing any more.
  void EndSession(const std::string& token);
  std::size_t connections() const;

 private:
  class Connection;
  struct Shared;
  explicit BulkServer(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace kvfabric
