#pragma once

// HttpTransport: HTTP/1.1 to one server over libcurl. One thread does all I/O; requests come back
// through a listener on that thread (Start) or as a value (Call).
//
// Owned by an ApiSession; any thread may call everything. A transfer that is under way has its
// connection to itself, so a watch holds up nobody; traffic that must wait for nothing (Leases) has
// a transport of its own. No redirects, no cookies, no .netrc. Bounded: connecting (TCP, proxy and
// TLS together), the whole request or its silence, the head (256 KiB) and a Call's body.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric::kube {

// PEM texts; shared by the requests made while they hold. Others make new connections, and those of
// before end with what runs on them.
struct TlsMaterial {
  std::string ca;           // empty: the system's
  std::string certificate;  // empty: none is shown
  std::string key;
};

struct HttpRequest {
  std::string method;         // GET
  std::string target;         // path and query
  std::string authorization;  // of the header; "" = none
  std::string content_type;   // of the body
  std::string body;
  std::shared_ptr<const TlsMaterial> tls;
  // False: it must reach the server at most once, so it gets a fresh connection; on an old one
  // libcurl would send it again when the server hung up.
  bool repeatable = true;
  std::chrono::milliseconds total{0};    // 0 = no deadline
  std::chrono::milliseconds silence{0};  // without a byte of body; 0 = no deadline
};

struct HttpHead {
  int code = 0;
  std::string content_type;
  std::string flow_schema;  // X-Kubernetes-PF-FlowSchema-UID: which class of traffic answered
  std::optional<std::chrono::milliseconds> retry_after;  // of the header, seconds only
};

// Why there is no whole answer.
enum class HttpFault : std::uint8_t {
  kNone,
  kNotSent,  // no connection came about
  kBroken,   // reset, or ended too early: the server may have done it or not
  kTooLate,  // one of the deadlines
  kStopped,  // by the listener, or the transport
  kOther,    // TLS, malformed, too long
};

struct HttpEnd {
  HttpFault fault = HttpFault::kNone;
  Status status;  // names server, method and path; OK with kNone
};

struct HttpAnswer {
  HttpHead head;
  std::string body;
  HttpEnd end;
};

enum class HttpTake : std::uint8_t {
  kTaken,
  kPause,  // not taken: comes again after Resume
  kStop,   // ends the transfer with kStopped
};

// Called on the transport's thread, one call at a time; must not call the transport's destructor.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  virtual void OnHead(const HttpHead& head) = 0;
  virtual HttpTake OnBody(std::string_view bytes) = 0;
  // The last call; not after Cancel.
  virtual void OnEnd(const HttpEnd& end) = 0;
};

class HttpTransport {
 public:
  struct Options {
    std::string server{};           // https://host:port/prefix
    std::string tls_server_name{};  // in the certificate, when it is not the server's host
    bool insecure = false;          // any certificate will do
    std::string proxy{};            // "" = as the environment says, for hosts that are not loopback
    std::string user_agent = "kvfabric";
    std::chrono::milliseconds connect_timeout{5000};
    std::chrono::milliseconds dead_after{30'000};         // bytes that nobody acknowledged (TCP)
    std::size_t max_body_bytes = std::size_t{64} << 20U;  // of a Call
  };

  // INVALID_ARGUMENT when the server is no https URL; http is for loopback only, where nobody
  // reads the token.
  static Result<std::unique_ptr<HttpTransport>> Create(Options options);
  ~HttpTransport();
  HttpTransport(const HttpTransport&) = delete;  // owns a thread
  HttpTransport& operator=(const HttpTransport&) = delete;

  // Blocks until the end; the request has a total deadline.
  HttpAnswer Call(HttpRequest request);
  // Handle of the transfer. CANCELLED after Stop, and then nobody is called.
  Result<std::uint64_t> Start(HttpRequest request, std::shared_ptr<HttpListener> listener);
  // Never wait; a call of the listener may be under way. No effect on one that has ended.
  void Resume(std::uint64_t transfer);
  void Cancel(std::uint64_t transfer);
  // Ends every transfer (kStopped) and the thread.
  void Stop();

 private:
  class Loop;
  explicit HttpTransport(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace kvfabric::kube
