#pragma once

// ScriptedAgent: a small agent for the client's tests. It speaks the local protocol over a Unix
// socket and over TCP, keeps blocks in real sealed memfds and leases in a map, and can be told to
// misbehave: a script takes the place of the proper answer to an operation.
//
// Owned by a test. Any thread may call; scripts run on the agent's loop. Another boot epoch is
// another ScriptedAgent on the same path.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "transport/event_loop.h"
#include "transport/frame_header.h"
#include "transport/listener.h"

namespace kvfabric {

class ScriptedAgent {
 public:
  struct Options {
    std::string socket_path{};  // empty = no Unix socket
    bool tcp = false;
    std::uint16_t tcp_port = 0;
    std::string token = "token";
    std::string pool = "default/pool";
    std::uint64_t boot_epoch = 1'000;
    std::uint64_t map_epoch = 7;
    std::size_t memfds = 2;
    std::uint64_t memfd_bytes = std::uint64_t{8} << 20U;
    std::size_t entries_per_part = 8'192;  // of a GET answer
  };
  class Connection;

  // One request, complete with its payload, of a connection that may have ended since.
  class Exchange {
   public:
    const FrameHeader header;
    const std::string body;

    // What the agent does when there is no script.
    void AnswerProperly();
    void Reply(std::string reply_body, std::uint8_t more_flags = 0, std::string payload = {});
    void Fail(const Status& status);
    // These bytes, whatever they are, on the socket.
    void WriteRaw(const std::string& bytes);
    void HangUp();

   private:
    friend class ScriptedAgent;
    friend class Connection;
    Exchange(std::shared_ptr<Connection> to, const FrameHeader& of, std::string request_body,
             std::string request_payload)
        : header(of),
          body(std::move(request_body)),
          connection_(std::move(to)),
          payload_(std::move(request_payload)) {}

    const std::shared_ptr<Connection> connection_;
    const std::string payload_;
  };
  using Script = std::function<void(const std::shared_ptr<Exchange>&)>;

  explicit ScriptedAgent(Options options);
  ~ScriptedAgent();                              // thaws, closes all connections
  ScriptedAgent(const ScriptedAgent&) = delete;  // owns a thread and sockets
  ScriptedAgent& operator=(const ScriptedAgent&) = delete;

  std::string unix_endpoint() const { return "unix:" + options_.socket_path; }
  std::string tcp_endpoint() const;
  std::uint16_t tcp_port() const;

  // Null = properly again.
  void On(FrameOp op, Script script);
  // Requests of `op` wait until AnswerHeld, which also ends the holding.
  void Hold(FrameOp op);
  std::uint64_t held();
  void AnswerHeld();
  // Each answer to `op` comes that much later.
  void Delay(FrameOp op, std::function<std::chrono::milliseconds()> by);
  // From now on (not) known here; connections stay.
  void SetPool(std::string pool);
  // The agent's only thread stands still, as if the process was stopped; sockets stay open.
  void Freeze();
  void Thaw();
  void CloseConnections();

  std::uint64_t connections();
  std::uint64_t leases();
  std::uint64_t blocks();
  // Frames of this operation that came, replies included.
  std::uint64_t received(FrameOp op);

  // Changes a byte of every stored block.
  void CorruptBlocks();
  // Each connection gets them, at most 200 a frame; blocks put from now on lie in the last one.
  void AddMemfds(std::size_t count);
  std::vector<std::uint64_t> memfd_ids();
  // Asks every connection to unmap it.
  void CloseMemfd(std::uint64_t id);
  // Connections that said so.
  std::uint64_t unmapped(std::uint64_t id);

 private:
  friend class Connection;
  struct State;

  void Ask(const std::function<void()>& task);
  std::uint64_t Count(const std::function<std::uint64_t()>& of);

  const Options options_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<State> state_;  // the loop's
  std::unique_ptr<Listener> unix_;
  std::unique_ptr<Listener> tcp_;

  Mutex mu_;
  CondVar thawed_;
  bool frozen_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
