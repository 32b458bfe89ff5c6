#include "operator/kube/embedded_api_server.h"

#include <httplib.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <future>
#include <thread>
#include <utility>

#include "http/listener_options.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_handler.h"
#include "operator/kube/elastic_tasks.h"
#include "operator/kube/tls_identity.h"
#include "operator/kube/watch_connections.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kConnections = 64;  // watches apart
constexpr std::size_t kMaxWaiting = 64;
constexpr int kKeepAliveSeconds = 1;  // an idle connection holds one of them
// With a parameter, so that cpp-httplib does not compress it: gzip would hold events back.
constexpr const char* kWatchType = "application/json; charset=utf-8";

// cpp-httplib's view of ElasticTasks.
class TaskQueue final : public httplib::TaskQueue {
 public:
  explicit TaskQueue(ElasticTasks& tasks) : tasks_(tasks) {}
  void enqueue(std::function<void()> task) override { tasks_.Enqueue(std::move(task)); }
  void shutdown() override { tasks_.Shutdown(); }

 private:
  ElasticTasks& tasks_;  // outlives the server
};

std::string Base64(std::string_view text) {
  std::string out(4 * ((text.size() + 2) / 3), '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(text.data()),
                  static_cast<int>(text.size()));
  return out;
}

ApiRequest RequestOf(const httplib::Request& request) {
  ApiRequest out;
  out.method = request.method;
  out.path = request.path;
  out.query.insert(request.params.begin(), request.params.end());
  out.accept = request.get_header_value("Accept");
  out.authorization = request.get_header_value("Authorization");
  out.content_type = request.get_header_value("Content-Type");
  out.user_agent = request.get_header_value("User-Agent");
  out.body = request.body;
  return out;
}

void Send(const ApiAnswer& answer, httplib::Response& response) {
  response.status = answer.status;
  if (answer.retry_after_s.has_value()) {
    response.set_header("Retry-After", std::to_string(*answer.retry_after_s));
  }
  response.set_content(answer.body, answer.content_type.c_str());
}

Status TooManyWatches(std::size_t limit) {
  auto detail = std::make_shared<ApiDetail>();
  detail->http_code = 429;
  detail->reason = "TooManyRequests";
  detail->retry_after = std::chrono::seconds(1);
  return {StatusCode::kUnavailable,
          "too many watches (limit " + std::to_string(limit) + "): end some, then try again",
          std::move(detail)};
}

template <typename T, typename Read>
T* ReadPem(const std::string& pem, Read read) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  T* out = read(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return out;
}

}  // namespace

struct EmbeddedApiServer::State {
  State(EmbeddedKubeApi& a, Options o)
      : api(a),
        options(std::move(o)),
        handler(api, options),
        tasks({kConnections, kMaxWaiting, options.max_watches}) {}
  void Serve(const httplib::Request& request, httplib::Response& response);
  void ServeWatch(const WatchParameters& wanted, const httplib::Request& request,
                  httplib::Response& response);

  EmbeddedKubeApi& api;  // borrowed
  const Options options;
  const ApiHandler handler;
  ElasticTasks tasks;
  WatchConnections watches;
  TlsIdentity identity;
  std::unique_ptr<httplib::SSLServer> server;
  std::uint16_t port = 0;
  std::thread thread;
};

void EmbeddedApiServer::State::Serve(const httplib::Request& request, httplib::Response& response) {
  const ApiAnswer answer = handler.Serve(RequestOf(request));
  if (answer.watch.has_value()) {
    ServeWatch(*answer.watch, request, response);
  } else {
    Send(answer, response);
  }
}

void EmbeddedApiServer::State::ServeWatch(const WatchParameters& wanted,
                                          const httplib::Request& request,
                                          httplib::Response& response) {
  if (!tasks.BeginLong()) {
    return Send(ApiHandler::Failure(TooManyWatches(options.max_watches)), response);
  }
  // Ends with the last holder, which is cpp-httplib once the answer is under way.
  const std::shared_ptr<void> turn(nullptr, [this](void*) { tasks.EndLong(); });
  const auto refuse = [&](const Status& why) { Send(ApiHandler::Failure(why), response); };
  auto connection = watches.Open(SSL_get_fd(request.ssl));
  if (!connection.ok()) return refuse(connection.status());
  WatchFeed::Options feed_options;
  feed_options.bookmark_every = options.bookmark_every;
  feed_options.table = options.table;
  auto feed = WatchFeed::Open(api, wanted, std::move(feed_options),
                              [raw = connection->get()] { raw->Wake(); });
  if (!feed.ok()) return refuse(feed.status());
  (*connection)->set_feed(std::move(feed).value());
  response.set_chunked_content_provider(
      kWatchType, [turn, watch = *connection](std::size_t /*offset*/, httplib::DataSink& sink) {
        using Next = WatchConnections::Connection::Next;
        std::string text;
        const Next next = watch->Wait(&text);
        if (next == Next::kClientGone) return false;
        if (!text.empty() && !sink.write(text.data(), text.size())) return false;
        if (next == Next::kEnd) sink.done();
        return true;
      });
}

Result<std::unique_ptr<EmbeddedApiServer>> EmbeddedApiServer::Start(EmbeddedKubeApi& api,
                                                                    Options options) {
  if (options.tokens.count("admin") == 0) {
    return InvalidArgument("tokens: no line for admin; add `admin TOKEN`");
  }
  auto state = std::make_unique<State>(api, std::move(options));
  KVF_ASSIGN_OR_RETURN(state->identity, MakeLoopbackIdentity());
  X509* certificate = ReadPem<X509>(state->identity.certificate_pem, PEM_read_bio_X509);
  EVP_PKEY* key = ReadPem<EVP_PKEY>(state->identity.key_pem, PEM_read_bio_PrivateKey);
  state->server = std::make_unique<httplib::SSLServer>(certificate, key);
  X509_free(certificate);  // the server holds its own references
  EVP_PKEY_free(key);
  httplib::SSLServer& server = *state->server;
  if (!server.is_valid()) return Internal("api server: the TLS library refuses the certificate");
  server.set_socket_options(ReuseAddressOnly);
  server.set_read_timeout(state->options.client_timeout);
  server.set_write_timeout(state->options.client_timeout);
  server.set_keep_alive_timeout(kKeepAliveSeconds);
  server.set_payload_max_length(kMaxObjectBytes);
  server.set_tcp_nodelay(true);  // small answers, one at a time
  const auto serve = [raw = state.get()](const httplib::Request& request,
                                         httplib::Response& response) {
    raw->Serve(request, response);
  };
  server.Get(".*", serve).Post(".*", serve).Put(".*", serve).Delete(".*", serve);
  server.Patch(".*", serve);
  const auto listening = std::make_shared<std::promise<void>>();
  server.new_task_queue = [listening, raw = state.get()]() -> httplib::TaskQueue* {
    auto tasks = std::make_unique<TaskQueue>(raw->tasks);
    listening->set_value();
    return tasks.release();  // cpp-httplib deletes it
  };
  errno = 0;
  const std::string host = "127.0.0.1";
  const std::uint16_t wanted = state->options.port;
  const int port = wanted == 0 ? server.bind_to_any_port(host)
                               : (server.bind_to_port(host, wanted) ? wanted : -1);
  if (port <= 0) {
    return ErrnoStatus(errno != 0 ? errno : EADDRNOTAVAIL,
                       "api server: listen on " + host + ":" + std::to_string(wanted));
  }
  state->port = static_cast<std::uint16_t>(port);
  state->thread = std::thread([&server] { server.listen_after_bind(); });
  listening->get_future().wait();  // only a running server can be stopped
  return std::unique_ptr<EmbeddedApiServer>(new EmbeddedApiServer(std::move(state)));
}

EmbeddedApiServer::EmbeddedApiServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

EmbeddedApiServer::~EmbeddedApiServer() {
  state_->watches.Stop();
  state_->server->stop();
  state_->thread.join();
}

std::uint16_t EmbeddedApiServer::port() const { return state_->port; }

std::string EmbeddedApiServer::Kubeconfig() const {
  return "apiVersion: v1\n"
         "kind: Config\n"
         "clusters:\n"
         "- name: kvfabric-local\n"
         "  cluster:\n"
         "    server: https://127.0.0.1:" +
         std::to_string(state_->port) +
         "\n"
         "    certificate-authority-data: " +
         Base64(state_->identity.certificate_pem) +
         "\n"
         "users:\n"
         "- name: admin\n"
         "  user:\n"
         "    token: \"" +
         FirstToken(state_->options.tokens, "admin") +
         "\"\n"
         "contexts:\n"
         "- name: kvfabric-local\n"
         "  context: {cluster: kvfabric-local, user: admin, namespace: default}\n"
         "current-context: kvfabric-local\n";
}

}  // namespace kvfabric::kube
