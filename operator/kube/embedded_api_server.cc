#include "operator/kube/embedded_api_server.h"

#include <httplib.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <charconv>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/log.h"
#include "http/listener_options.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_path.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/json.h"
#include "operator/kube/tls_identity.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kThreads = 8;
constexpr std::size_t kMaxWaiting = 64;
constexpr int kClientTimeoutSeconds = 5;
constexpr int kKeepAliveSeconds = 1;  // an idle connection holds a thread
constexpr const char* kJson = "application/json";
constexpr std::string_view kBearer = "Bearer ";

// cpp-httplib's view of BoundedTasks.
class TaskQueue final : public httplib::TaskQueue {
 public:
  TaskQueue(std::size_t threads, std::size_t max_waiting) : tasks_(threads, max_waiting) {}
  void enqueue(std::function<void()> task) override { tasks_.Enqueue(std::move(task)); }
  void shutdown() override { tasks_.Shutdown(); }

 private:
  BoundedTasks tasks_;
};

// Takes as long for a wrong token as for the right one.
bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const unsigned left = static_cast<unsigned char>(a[i]);
    const unsigned right = static_cast<unsigned char>(b[i]);
    difference |= left ^ right;
  }
  return difference == 0;
}

Status Authenticate(const Tokens& tokens, const std::string& authorization) {
  const bool bearer = authorization.compare(0, kBearer.size(), kBearer) == 0;
  const std::string_view token =
      bearer ? std::string_view(authorization).substr(kBearer.size()) : std::string_view();
  std::string tenant;
  for (const auto& [name, secret] : tokens) {
    if (!token.empty() && SameSecret(secret, token)) tenant = name;
  }
  if (tenant.empty()) return Unauthenticated("Unauthorized: give the bearer token of admin");
  if (tenant != "admin") {
    return PermissionDenied("the token of tenant " + tenant + " reads and writes blocks only");
  }
  return Status::Ok();
}

std::string Base64(std::string_view text) {
  std::string out(4 * ((text.size() + 2) / 3), '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(text.data()),
                  static_cast<int>(text.size()));
  return out;
}

// Options we would have to obey and do not know yet are refused, never ignored.
Status CheckQuery(const httplib::Request& request) {
  const std::string watch = request.get_param_value("watch");
  if (watch == "true" || watch == "1") {
    return Unimplemented("watch: not served by a local fabric yet; list instead");
  }
  if (request.has_param("dryRun")) return InvalidArgument("dryRun: not served; leave it out");
  if (request.has_param("fieldSelector")) {
    return InvalidArgument("fieldSelector: not served; leave it out");
  }
  return Status::Ok();
}

Result<Preconditions> ReadPreconditions(const std::string& body) {
  Preconditions out;
  if (body.empty()) return out;
  KVF_ASSIGN_OR_RETURN(const Json root, ParseJson(body));
  const Json* wanted = Find(root, "preconditions");
  if (wanted == nullptr) return out;
  out.uid = StringAt(*wanted, "uid");
  const std::string version = StringAt(*wanted, "resourceVersion");
  const auto [end, error] =
      std::from_chars(version.data(), version.data() + version.size(), out.resource_version);
  if (!version.empty() && (error != std::errc() || end != version.data() + version.size())) {
    return InvalidArgument("preconditions.resourceVersion: not a number");
  }
  return out;
}

// The object of a request's body; kind and names it leaves out come from the path.
Result<std::string> ObjectOfBody(const ApiPath& path, const std::string& body) {
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(body));
  if (!root.is_object()) return InvalidArgument("body: must be an object");
  Json& metadata = root["metadata"];
  if (metadata.is_null()) metadata = Json::object();
  if (!metadata.is_object()) return InvalidArgument("metadata: must be an object");
  const auto agree = [&](const char* key, const std::string& wanted) {
    const std::string given = StringAt(metadata, key);
    if (given.empty() && !wanted.empty()) metadata[key] = wanted;
    return wanted.empty() || given.empty() || given == wanted;
  };
  if (!agree("namespace", path.ns) || !agree("name", path.name)) {
    return InvalidArgument("metadata: names another object than the path");
  }
  return DumpJson(root);
}

class Handler {
 public:
  Handler(KubeClient& api, const EmbeddedApiServer::Options& options)
      : api_(api), options_(options) {}

  void Serve(const httplib::Request& request, httplib::Response& response) const {
    if (request.path == "/livez" || request.path == "/readyz" || request.path == "/healthz") {
      response.set_content("ok", "text/plain");
      return;
    }
    Result<std::string> body = Authenticated(request);
    if (body.ok()) {
      response.status = request.method == "POST" ? 201 : 200;
      response.set_content(*body, kJson);
    } else {
      response.status = HttpReasonOf(body.status()).code;
      response.set_content(StatusBody(body.status()), kJson);
    }
  }

 private:
  Result<std::string> Authenticated(const httplib::Request& request) const {
    KVF_RETURN_IF_ERROR(Authenticate(options_.tokens, request.get_header_value("Authorization")));
    std::string discovery = DiscoveryBody(request.path, options_.version);
    if (!discovery.empty() && request.method == "GET") return discovery;
    const std::optional<ApiPath> path = ParseApiPath(request.path);
    if (!path.has_value()) return NotFound("the server has no resource at " + request.path);
    KVF_RETURN_IF_ERROR(CheckQuery(request));
    return path->name.empty() ? Collection(*path, request) : Item(*path, request);
  }

  Result<std::string> Collection(const ApiPath& path, const httplib::Request& request) const {
    if (request.method == "GET") {
      KVF_ASSIGN_OR_RETURN(ObjectList list, api_.List(path.kind, path.ns));
      const std::string selector = request.get_param_value("labelSelector");
      std::vector<ObjectPtr> kept;
      for (ObjectPtr& object : list.items) {
        KVF_ASSIGN_OR_RETURN(const bool matches, MatchesSelector(object->meta.labels, selector));
        if (matches) kept.push_back(std::move(object));
      }
      list.items = std::move(kept);
      if (WantsTable(request)) return options_.table(path.kind, list);
      return ListBody(path.kind, list);
    }
    if (request.method == "POST") {
      KVF_ASSIGN_OR_RETURN(const std::string json, ObjectOfBody(path, request.body));
      KVF_ASSIGN_OR_RETURN(const ObjectPtr object, api_.Create(path.kind, json));
      return object->json;
    }
    return Unimplemented(request.method + " " + request.path + ": not served");
  }

  Result<std::string> Item(const ApiPath& path, const httplib::Request& request) const {
    const ObjectName name{path.ns, path.name};
    if (request.method == "GET") {
      KVF_ASSIGN_OR_RETURN(const ObjectPtr object, api_.Get(path.kind, name));
      if (WantsTable(request)) {
        return options_.table(path.kind, {object->meta.resource_version, {object}});
      }
      return object->json;
    }
    if (request.method == "PUT") {
      KVF_ASSIGN_OR_RETURN(const std::string json, ObjectOfBody(path, request.body));
      KVF_ASSIGN_OR_RETURN(const ObjectPtr object, path.status ? api_.UpdateStatus(path.kind, json)
                                                               : api_.Update(path.kind, json));
      return object->json;
    }
    if (request.method == "DELETE" && !path.status) {
      KVF_ASSIGN_OR_RETURN(const Preconditions preconditions, ReadPreconditions(request.body));
      KVF_RETURN_IF_ERROR(api_.Delete(path.kind, name, preconditions));
      return DeletedBody(path.kind, name);
    }
    return Unimplemented(request.method + " " + request.path +
                         ": not served by a local fabric yet");
  }

  bool WantsTable(const httplib::Request& request) const {
    return options_.table != nullptr &&
           request.get_header_value("Accept").find("as=Table") != std::string::npos;
  }

  KubeClient& api_;  // borrowed
  const EmbeddedApiServer::Options& options_;
};

template <typename T, typename Read>
T* ReadPem(const std::string& pem, Read read) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  T* out = read(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return out;
}

}  // namespace

struct EmbeddedApiServer::State {
  explicit State(Options o) : options(std::move(o)) {}
  const Options options;
  TlsIdentity identity;
  std::unique_ptr<Handler> handler;
  std::unique_ptr<httplib::SSLServer> server;
  std::uint16_t port = 0;
  std::thread thread;
};

Result<std::unique_ptr<EmbeddedApiServer>> EmbeddedApiServer::Start(KubeClient& api,
                                                                    Options options) {
  if (options.tokens.count("admin") == 0) {
    return InvalidArgument("tokens: no line for admin; add `admin TOKEN`");
  }
  auto state = std::make_unique<State>(std::move(options));
  KVF_ASSIGN_OR_RETURN(state->identity, MakeLoopbackIdentity());
  state->handler = std::make_unique<Handler>(api, state->options);
  X509* certificate = ReadPem<X509>(state->identity.certificate_pem, PEM_read_bio_X509);
  EVP_PKEY* key = ReadPem<EVP_PKEY>(state->identity.key_pem, PEM_read_bio_PrivateKey);
  state->server = std::make_unique<httplib::SSLServer>(certificate, key);
  X509_free(certificate);  // the server holds its own references
  EVP_PKEY_free(key);
  httplib::SSLServer& server = *state->server;
  if (!server.is_valid()) return Internal("api server: the TLS library refuses the certificate");
  server.set_socket_options(ReuseAddressOnly);
  server.set_read_timeout(kClientTimeoutSeconds);
  server.set_write_timeout(kClientTimeoutSeconds);
  server.set_keep_alive_timeout(kKeepAliveSeconds);
  server.set_payload_max_length(kMaxObjectBytes);
  server.set_tcp_nodelay(true);  // small answers, one at a time
  const auto serve = [handler = state->handler.get()](const httplib::Request& request,
                                                      httplib::Response& response) {
    handler->Serve(request, response);
  };
  server.Get(".*", serve).Post(".*", serve).Put(".*", serve).Delete(".*", serve);
  server.Patch(".*", serve);
  const auto listening = std::make_shared<std::promise<void>>();
  server.new_task_queue = [listening]() -> httplib::TaskQueue* {
    auto tasks = std::make_unique<TaskQueue>(kThreads, kMaxWaiting);
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
