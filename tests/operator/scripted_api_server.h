#pragma once

// ScriptedApiServer: an HTTP server on loopback that does byte for byte what a test says: chunks
// cut anywhere, silence, wrong lengths, cut connections, TLS or not. It speaks only as much HTTP as
// it takes to read a request.
//
// Owned by a test. The script runs on the thread of its connection, one request at a time; requests
// are kept for the test to look at.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace kvfabric::kube {

class ScriptedApiServer {
 public:
  struct Request {
    std::string method;
    std::string target;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
    std::uint64_t connection = 0;
    std::uint64_t number = 0;  // of all requests, from 1
    bool Has(std::string_view part) const { return target.find(part) != std::string::npos; }
  };

  class Connection {
   public:
    virtual ~Connection() = default;
    virtual void Write(std::string_view bytes) = 0;
    // Until the client hangs up or the server stops.
    virtual void Stall() = 0;
    virtual void HangUp() = 0;  // FIN; no close_notify
    virtual void Reset() = 0;   // RST

    // A whole answer with a length; `headers` = more lines, each with its CRLF.
    void Answer(int code, std::string_view body, std::string_view headers = "");
    void StartChunks(int code = 200, std::string_view headers = "");
    void Chunk(std::string_view bytes);
    void EndChunks() { Write("0\r\n\r\n"); }
  };
  using Script = std::function<void(const Request&, Connection&)>;

  struct Tls {
    std::string certificate;  // PEM; empty = clear text
    std::string key;
    std::string client_ca;  // a client must show a certificate it signed
  };

  explicit ScriptedApiServer(Script script) : ScriptedApiServer(std::move(script), Tls()) {}
  ScriptedApiServer(Script script, Tls tls);
  ~ScriptedApiServer();                                  // ends all connections
  ScriptedApiServer(const ScriptedApiServer&) = delete;  // owns threads and sockets
  ScriptedApiServer& operator=(const ScriptedApiServer&) = delete;

  std::uint16_t port() const { return port_; }
  std::string url() const;
  std::vector<Request> requests() const EXCLUDES(mu_);
  std::uint64_t connections() const { return connections_; }
  // Until so many requests have come; false after ten seconds.
  bool WaitForRequests(std::size_t count) const EXCLUDES(mu_);
  // Until so many connections have ended; false after ten seconds.
  bool WaitForEnds(std::size_t count) const EXCLUDES(mu_);

 private:
  class Peer;
  void Accept();
  void Serve(int fd, std::uint64_t number);

  const Script script_;
  const Tls tls_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  void* context_ = nullptr;  // SSL_CTX
  std::atomic<std::uint64_t> connections_{0};

  mutable Mutex mu_;
  mutable CondVar changed_;
  std::vector<Request> requests_ GUARDED_BY(mu_);
  std::map<std::uint64_t, int> open_ GUARDED_BY(mu_);  // sockets by connection
  std::size_t ended_ GUARDED_BY(mu_) = 0;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace kvfabric::kube
