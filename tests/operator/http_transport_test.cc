#include "operator/kube/http_transport.h"

#include <gtest/gtest.h>

#include <future>

#include "operator/kube/tls_identity.h"
#include "tests/operator/scripted_api_server.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Connection = ScriptedApiServer::Connection;
using Request = ScriptedApiServer::Request;

std::unique_ptr<HttpTransport> Make(HttpTransport::Options options) {
  options.user_agent = "test/1";
  auto transport = HttpTransport::Create(std::move(options));
  EXPECT_TRUE(transport.ok()) << transport.status().ToString();
  return std::move(transport).value();
}
std::unique_ptr<HttpTransport> To(const ScriptedApiServer& server) {
  return Make({.server = server.url()});
}
HttpRequest Get(const std::string& target) {
  HttpRequest request;
  request.method = "GET";
  request.target = target;
  request.total = seconds(10);
  return request;
}

// Keeps what comes; the test decides what is taken.
class Recorder final : public HttpListener {
 public:
  void OnHead(const HttpHead& head) override { code = head.code; }
  HttpTake OnBody(std::string_view bytes) override {
    MutexLock lock(mu);
    if (pause) {
      paused = true;
      changed.NotifyAll();
      return HttpTake::kPause;
    }
    body.append(bytes);
    changed.NotifyAll();
    return HttpTake::kTaken;
  }
  void OnEnd(const HttpEnd& said) override {
    MutexLock lock(mu);
    end = said;
    ended = true;
    changed.NotifyAll();
  }
  template <typename Done>
  bool Wait(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(10);
    MutexLock lock(mu);
    while (!done()) {
      if (!changed.WaitUntil(mu, deadline)) return false;
    }
    return true;
  }
  Mutex mu;
  CondVar changed;
  int code = 0;
  bool pause = false;
  bool paused = false;
  bool ended = false;
  std::string body;
  HttpEnd end;
};

TEST(HttpTransport, SendsWhatIsAskedAndReadsHeads) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.Write("HTTP/1.1 100 Continue\r\nRetry-After: 9\r\n\r\n");
    to.Answer(429, "slow down", "RETRY-after:  7 \r\nX-Kubernetes-PF-FlowSchema-UID: f-1\r\n");
  });
  const auto transport = To(server);
  HttpRequest request = Get("/api/v1/nodes?limit=5");
  request.method = "PUT";
  request.body = std::string(100'000, 'x');
  request.content_type = "application/json";
  request.authorization = "Bearer abc";
  const HttpAnswer answer = transport->Call(request);
  EXPECT_TRUE(answer.end.status.ok()) << answer.end.status.ToString();
  EXPECT_EQ(answer.head.code, 429);
  EXPECT_EQ(answer.head.content_type, "application/json");
  EXPECT_EQ(answer.head.retry_after, milliseconds(7000));
  EXPECT_EQ(answer.head.flow_schema, "f-1");
  EXPECT_EQ(answer.body, "slow down");
  const auto seen = server.requests();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].method, "PUT");
  EXPECT_EQ(seen[0].target, "/api/v1/nodes?limit=5");
  EXPECT_EQ(seen[0].body, request.body);
  EXPECT_EQ(seen[0].headers.at("authorization"), "Bearer abc");
  EXPECT_EQ(seen[0].headers.at("user-agent"), "test/1");
  EXPECT_EQ(seen[0].headers.count("expect"), 0U);
}

TEST(HttpTransport, KeepsPathPrefixesAndConnections) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Answer(200, "{}"); });
  const auto transport = Make({.server = server.url() + "/k8s/c-1/"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(transport->Call(Get("/version")).head.code, 200);
  EXPECT_EQ(server.requests()[2].target, "/k8s/c-1/version");
  EXPECT_EQ(server.connections(), 1U);
}

TEST(HttpTransport, DoesNotFollowRedirects) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(302, "", "Location: /elsewhere\r\n"); });
  EXPECT_EQ(To(server)->Call(Get("/a")).head.code, 302);
  EXPECT_EQ(server.requests().size(), 1U);
}

// Bytes that are no chunk size, a cut in a chunk, one between chunks, a length not kept to.
TEST(HttpTransport, TruncatedOrMalformedBodiesAreErrors) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (const std::string& bytes :
       {chunked + "5\r\nabcdeXX5\r\nabcde\r\n0\r\n\r\n", chunked + "5\r\nabc",
        chunked + "5\r\nabcde\r\n", chunked + "zz\r\nabcde\r\n0\r\n\r\n", chunked,
        head + "Content-Length: 10\r\n\r\nabc", head + "Content-Len", std::string()}) {
    ScriptedApiServer server([&](const Request&, Connection& to) {
      to.Write(bytes);
      to.HangUp();
    });
    const HttpAnswer answer = To(server)->Call(Get("/"));
    EXPECT_NE(answer.end.fault, HttpFault::kNone) << bytes;
    EXPECT_EQ(answer.end.status.code(), StatusCode::kUnavailable) << bytes;
    EXPECT_NE(answer.end.status.message().find("GET /"), std::string::npos);
  }
}

TEST(HttpTransport, TellsFaultsApart) {
  std::uint16_t gone = 0;
  {
    ScriptedApiServer server([](const Request&, Connection& to) { to.Reset(); });
    const auto transport = To(server);
    EXPECT_EQ(transport->Call(Get("/")).end.fault, HttpFault::kBroken);
    gone = server.port();
  }
  const auto transport = Make({.server = "http://127.0.0.1:" + std::to_string(gone)});
  const HttpAnswer refused = transport->Call(Get("/"));
  EXPECT_EQ(refused.end.fault, HttpFault::kNotSent);
  EXPECT_NE(refused.end.status.message().find("onnect"), std::string::npos);
}

TEST(HttpTransport, EndsCallsAtTheirDeadline) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("/body")) to.Write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
    if (request.Has("/head")) to.Write("HTTP/1.1 200 OK\r\nContent-");
    to.Stall();
  });
  const auto transport = To(server);
  for (const char* target : {"/nothing", "/head", "/body"}) {
    HttpRequest request = Get(target);
    request.total = milliseconds(50);
    const HttpAnswer answer = transport->Call(request);
    EXPECT_EQ(answer.end.fault, HttpFault::kTooLate) << target;
    EXPECT_EQ(answer.end.status.code(), StatusCode::kDeadlineExceeded);
  }
}

// A server that accepts but never speaks TLS.
TEST(HttpTransport, BoundsTheHandshake) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Stall(); });
  const auto transport = Make({.server = "https://127.0.0.1:" + std::to_string(server.port()),
                               .connect_timeout = milliseconds(50)});
  EXPECT_EQ(transport->Call(Get("/")).end.fault, HttpFault::kTooLate);
}

TEST(HttpTransport, BoundsHeadsAndBodies) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("/head")) {
      const std::string line = "X-Long: " + std::string(60'000, 'x') + "\r\n";
      to.Answer(200, "{}", line + line + line + line + line);
    } else {
      to.Answer(200, std::string(2000, 'x'));
    }
  });
  const auto transport = Make({.server = server.url(), .max_body_bytes = 1000});
  const HttpAnswer head = transport->Call(Get("/head"));
  EXPECT_EQ(head.end.fault, HttpFault::kOther);
  EXPECT_NE(head.end.status.message().find("256 KiB"), std::string::npos)
      << head.end.status.message();
  const HttpAnswer body = transport->Call(Get("/body"));
  EXPECT_EQ(body.end.status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(body.end.status.message().find("longer than 1000"), std::string::npos);
}

// A connection that a server closed while it was idle: what is harmless is sent again, what is not
// gets a connection on which that cannot happen.
TEST(HttpTransport, SendsAtMostOnceWhatMayNotBeRepeated) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.method == "GET") return to.Answer(200, "{}");
    to.HangUp();  // it was read, perhaps done, and the answer is lost
  });
  const auto transport = To(server);
  ASSERT_EQ(transport->Call(Get("/warm")).head.code, 200);
  HttpRequest post = Get("/post");
  post.method = "POST";
  post.body = "{}";
  post.repeatable = false;
  EXPECT_EQ(transport->Call(post).end.fault, HttpFault::kBroken);
  std::size_t posts = 0;
  for (const Request& request : server.requests()) posts += request.method == "POST" ? 1U : 0U;
  EXPECT_EQ(posts, 1U);
}

TEST(HttpTransport, StreamsGoOnBesideCalls) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (!request.Has("watch")) return to.Answer(200, "{}");
    to.StartChunks();
    to.Chunk("one");
    to.Stall();
  });
  const auto transport = To(server);
  const auto first = std::make_shared<Recorder>();
  const auto second = std::make_shared<Recorder>();
  HttpRequest watch = Get("/watch");
  watch.total = milliseconds(0);
  const std::uint64_t transfer = *transport->Start(watch, first);
  ASSERT_TRUE(transport->Start(watch, second).ok());
  EXPECT_TRUE(first->Wait([&] { return first->body == "one"; }));
  EXPECT_TRUE(second->Wait([&] { return second->body == "one"; }));
  EXPECT_EQ(transport->Call(Get("/call")).head.code, 200);
  EXPECT_EQ(server.connections(), 3U) << "one for each watch";
  transport->Cancel(transfer);
  EXPECT_TRUE(server.WaitForEnds(1)) << "cancelling closes the connection";
  transport->Stop();
  EXPECT_TRUE(second->ended);
  EXPECT_EQ(second->end.fault, HttpFault::kStopped);
  EXPECT_FALSE(first->ended) << "nobody is told after Cancel";
  EXPECT_EQ(transport->Start(watch, first).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(transport->Call(Get("/call")).end.fault, HttpFault::kStopped);
}

TEST(HttpTransport, SilentStreamsEndAndPausedOnesDoNot) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk("one");
    to.Stall();
  });
  const auto transport = To(server);
  const auto paused = std::make_shared<Recorder>();
  const auto silent = std::make_shared<Recorder>();
  paused->pause = true;
  HttpRequest watch = Get("/watch");
  watch.total = milliseconds(0);
  watch.silence = milliseconds(100);
  const std::uint64_t transfer = *transport->Start(watch, paused);
  ASSERT_TRUE(paused->Wait([&] { return paused->paused; }));
  ASSERT_TRUE(transport->Start(watch, silent).ok());
  ASSERT_TRUE(silent->Wait([&] { return silent->ended; }));
  EXPECT_EQ(silent->end.fault, HttpFault::kTooLate);
  EXPECT_EQ(silent->body, "one");
  {
    MutexLock lock(paused->mu);
    EXPECT_FALSE(paused->ended) << "its silence is ours";
    paused->pause = false;
  }
  transport->Resume(transfer);
  ASSERT_TRUE(paused->Wait([&] { return paused->ended; }));
  EXPECT_EQ(paused->body, "one") << "nothing is lost by a pause";
}

TEST(HttpTransport, CanBeStoppedFromAnotherThreadDuringACall) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Stall(); });
  const auto transport = To(server);
  auto call = std::async(std::launch::async, [&] { return transport->Call(Get("/")); });
  ASSERT_TRUE(server.WaitForRequests(1));
  transport->Stop();
  EXPECT_EQ(call.get().end.fault, HttpFault::kStopped);
}

class TlsTest : public ::testing::Test {
 protected:
  TlsIdentity server_ = *MakeLoopbackIdentity();
  TlsIdentity client_ = *MakeLoopbackIdentity();
  static void Ok(const Request&, Connection& to) { to.Answer(200, "{}"); }
  static HttpRequest With(TlsMaterial tls) {
    HttpRequest request = Get("/");
    request.tls = std::make_shared<const TlsMaterial>(std::move(tls));
    return request;
  }
};

TEST_F(TlsTest, TrustsItsAuthorityAndNobodyElse) {
  ScriptedApiServer server(Ok, {server_.certificate_pem, server_.key_pem, ""});
  const auto transport = To(server);
  EXPECT_EQ(transport->Call(With({server_.certificate_pem, "", ""})).head.code, 200);
  EXPECT_EQ(transport->Call(With({client_.certificate_pem, "", ""})).end.status.code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(transport->Call(With({})).end.fault, HttpFault::kOther);
  EXPECT_EQ(Make({.server = server.url(), .insecure = true})->Call(With({})).head.code, 200);
}

TEST_F(TlsTest, VerifiesTheNameItIsTold) {
  ScriptedApiServer server(Ok, {server_.certificate_pem, server_.key_pem, ""});
  const auto named = Make({.server = server.url(), .tls_server_name = "localhost"});
  EXPECT_EQ(named->Call(With({server_.certificate_pem, "", ""})).head.code, 200);
  EXPECT_EQ(server.requests()[0].headers.at("host"), "127.0.0.1:" + std::to_string(server.port()));
  const auto other = Make({.server = server.url(), .tls_server_name = "other.example"});
  EXPECT_EQ(other->Call(With({server_.certificate_pem, "", ""})).end.fault, HttpFault::kOther);
}

// New files, new connections; those of before end with what runs on them.
TEST_F(TlsTest, ShowsANewClientCertificateOnANewConnection) {
  ScriptedApiServer server(Ok, {server_.certificate_pem, server_.key_pem, client_.certificate_pem});
  const auto transport = To(server);
  const TlsMaterial good{server_.certificate_pem, client_.certificate_pem, client_.key_pem};
  EXPECT_EQ(transport->Call(With(good)).head.code, 200);
  EXPECT_EQ(transport->Call(With(good)).head.code, 200);
  EXPECT_EQ(server.connections(), 1U);
  const TlsMaterial stranger{server_.certificate_pem, server_.certificate_pem, server_.key_pem};
  EXPECT_NE(transport->Call(With(stranger)).end.fault, HttpFault::kNone);
  EXPECT_EQ(server.connections(), 2U);
  EXPECT_NE(transport->Call(With({server_.certificate_pem, "", ""})).end.fault, HttpFault::kNone);
  EXPECT_EQ(transport->Call(With(good)).head.code, 200);
}

TEST(HttpTransport, GoesThroughTheProxyItIsGiven) {
  ScriptedApiServer proxy([](const Request& request, Connection& to) {
    if (request.method == "CONNECT") return to.Write("HTTP/1.1 200 Connected\r\nX: y\r\n\r\n");
    to.Answer(200, "{}");
  });
  // In clear text a proxy is asked with the whole URL.
  const auto transport = Make({.server = "http://127.0.0.1:1",
                               .proxy = "http://127.0.0.1:" + std::to_string(proxy.port())});
  EXPECT_EQ(transport->Call(Get("/version")).head.code, 200);
  EXPECT_EQ(proxy.requests()[0].target, "http://127.0.0.1:1/version");
}

TEST(HttpTransport, UsesNoProxyOfTheEnvironmentForLoopback) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Answer(200, "{}"); });
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  const HttpAnswer answer = To(server)->Call(Get("/version"));
  ::unsetenv("http_proxy");
  EXPECT_EQ(answer.head.code, 200) << answer.end.status.ToString();
}

TEST(HttpTransport, RefusesAddressesThatWouldShowTheToken) {
  for (const char* server :
       {"http://10.0.0.1:80", "http://127.0.0.1.example.org", "ftp://127.0.0.1", "127.0.0.1:6443",
        "https://", "https://a b", "https://host:0", "https://host:66000", "https://u@host",
        "https://host/?a=b", "https://::1:6443", "file:///etc/passwd"}) {
    const auto transport = HttpTransport::Create({.server = server});
    EXPECT_EQ(transport.status().code(), StatusCode::kInvalidArgument) << server;
  }
  for (const char* server : {"https://10.0.0.1", "https://[fd00::1]:6443", "http://localhost:8001",
                             "http://[::1]:80/prefix", "https://api.example.org:6443/a/b/"}) {
    EXPECT_TRUE(HttpTransport::Create({.server = server}).ok()) << server;
  }
}

}  // namespace
}  // namespace kvfabric::kube
