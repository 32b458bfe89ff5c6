#include "operator/kube/remote_kube.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/mutex.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_path.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/json.h"
#include "operator/kube/yaml.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20U;
constexpr std::size_t kMaxKubeconfigBytes = std::size_t{1} << 20U;

struct Answer {
  std::string body;
  bool too_long = false;
};

std::size_t Receive(char* data, std::size_t size, std::size_t count, void* user) {
  auto* answer = static_cast<Answer*>(user);
  const std::size_t bytes = size * count;
  answer->too_long = answer->body.size() + bytes > kMaxAnswerBytes;
  if (answer->too_long) return 0;
  answer->body.append(data, bytes);
  return bytes;
}

StatusCode CodeOfCurl(CURLcode code) {
  return code == CURLE_OPERATION_TIMEDOUT ? StatusCode::kDeadlineExceeded
                                          : StatusCode::kUnavailable;
}

Result<std::string> DecodeBase64(const std::string& text) {
  std::string out(text.size() / 4 * 3 + 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0) return InvalidArgument("certificate-authority-data: not base64");
  out.resize(static_cast<std::size_t>(size));
  // EVP_DecodeBlock counts the padding as zero bytes.
  while (!out.empty() && out.back() == '\0') out.pop_back();
  return out;
}

// The entry of a kubeconfig's list by its name.
const Json* Entry(const Json& root, const char* list, const std::string& name, const char* part) {
  const Json* entries = Find(root, list);
  if (entries == nullptr || !entries->is_array()) return nullptr;
  for (const Json& entry : *entries) {
    if (StringAt(entry, "name") == name) return Find(entry, part);
  }
  return nullptr;
}

}  // namespace

struct RemoteKube::State {
  Options options;
  Mutex mu;
  CURL* handle GUARDED_BY(mu) = nullptr;
  curl_slist* headers = nullptr;  // constant after construction

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() NO_THREAD_SAFETY_ANALYSIS {
    curl_easy_cleanup(handle);
    curl_slist_free_all(headers);
  }
};

RemoteKube::RemoteKube(std::unique_ptr<State> state) : state_(std::move(state)) {}
RemoteKube::~RemoteKube() = default;

Result<std::unique_ptr<RemoteKube>> RemoteKube::Create(Options options) {
  static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (global != CURLE_OK) return Internal("http client: cannot start");
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  {
    MutexLock lock(state->mu);
    state->handle = curl_easy_init();
    if (state->handle == nullptr) return Internal("http client: cannot start");
  }
  const std::string authorization = "Authorization: Bearer " + state->options.token;
  for (const char* header : {"Content-Type: application/json", "Accept: application/json",
                             "Expect:", authorization.c_str()}) {
    state->headers = curl_slist_append(state->headers, header);
  }
  return std::unique_ptr<RemoteKube>(new RemoteKube(std::move(state)));
}

Result<std::unique_ptr<RemoteKube>> RemoteKube::FromKubeconfig(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(path.string() + ": read: no such file, or not readable");
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (text.size() > kMaxKubeconfigBytes) return InvalidArgument(path.string() + ": too long");
  const Result<std::vector<std::string>> documents = YamlToJson(text);
  if (!documents.ok()) return documents.status().WithContext(path.string());
  if (documents->empty()) return InvalidArgument(path.string() + ": empty");
  KVF_ASSIGN_OR_RETURN(const Json root, ParseJson(documents->front()));
  const Json* context = Entry(root, "contexts", StringAt(root, "current-context"), "context");
  if (context == nullptr) return InvalidArgument(path.string() + ": no current context");
  const Json* cluster = Entry(root, "clusters", StringAt(*context, "cluster"), "cluster");
  const Json* user = Entry(root, "users", StringAt(*context, "user"), "user");
  if (cluster == nullptr || user == nullptr) {
    return InvalidArgument(path.string() + ": the current context names no cluster and user");
  }
  Options options;
  options.server = StringAt(*cluster, "server");
  options.token = StringAt(*user, "token");
  KVF_ASSIGN_OR_RETURN(options.ca_pem,
                       DecodeBase64(StringAt(*cluster, "certificate-authority-data")));
  return Create(std::move(options));
}

Result<std::string> RemoteKube::Call(const std::string& method, const std::string& path,
                                     const std::string& body) {
  const Options& options = state_->options;
  Answer answer;
  const std::string url = options.server + path;
  MutexLock lock(state_->mu);
  CURL* handle = state_->handle;
  curl_easy_reset(handle);
  curl_blob ca{};
  // libcurl takes the pointer as writable but copies from it.
  ca.data = const_cast<char*>(options.ca_pem.data());  // NOLINT
  ca.len = options.ca_pem.size();
  ca.flags = CURL_BLOB_COPY;
  if (!options.ca_pem.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO_BLOB, &ca);
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(handle, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(options.connect_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, state_->headers);
  curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, method.c_str());
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "kvctl");
  if (!body.empty()) {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  }
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, Receive);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &answer);
  const CURLcode outcome = curl_easy_perform(handle);
  if (outcome != CURLE_OK) {
    return Status(CodeOfCurl(outcome), "api " + options.server + ": " + method + " " + path + ": " +
                                           (answer.too_long ? "the answer is longer than 64 MiB"
                                                            : curl_easy_strerror(outcome)));
  }
  long code = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
  KVF_RETURN_IF_ERROR(StatusOfAnswer(static_cast<int>(code), answer.body));
  return std::move(answer.body);
}

Status RemoteKube::Ping() { return Call("GET", "/version", "").status(); }

Result<ObjectList> RemoteKube::List(Kind kind, const std::string& ns) {
  ApiPath path;
  path.kind = kind;
  path.ns = ns;
  KVF_ASSIGN_OR_RETURN(const std::string body, Call("GET", FormatApiPath(path), ""));
  // Many objects: longer than one may be.
  const Json root = Json::parse(body, nullptr, false);
  const Json* items = root.is_object() ? Find(root, "items") : nullptr;
  const std::string kind_name = root.is_object() ? StringAt(root, "kind") : "";
  // A cut-off answer must not pass for a shorter list.
  if (items == nullptr || !items->is_array() ||
      kind_name != std::string(TraitsOf(kind).name) + "List") {
    return Unavailable("api: list of " + std::string(TraitsOf(kind).plural) + ": not a list");
  }
  ObjectList out;
  if (const Json* metadata = Find(root, "metadata")) {
    const std::string version = StringAt(*metadata, "resourceVersion");
    std::from_chars(version.data(), version.data() + version.size(), out.resource_version);
  }
  for (Json item : *items) {
    // Some servers leave kind and apiVersion out of list items.
    item["kind"] = TraitsOf(kind).name;
    item["apiVersion"] = ApiVersionOf(kind);
    KVF_ASSIGN_OR_RETURN(Object object, ParseObject(kind, DumpJson(item)));
    out.items.push_back(std::make_shared<const Object>(std::move(object)));
  }
  return out;
}

Result<ObjectPtr> RemoteKube::Get(Kind kind, const ObjectName& name) {
  const ApiPath path{kind, name.ns, name.name, false};
  KVF_ASSIGN_OR_RETURN(std::string body, Call("GET", FormatApiPath(path), ""));
  KVF_ASSIGN_OR_RETURN(Object object, ParseObject(kind, std::move(body)));
  return ObjectPtr(std::make_shared<const Object>(std::move(object)));
}

Result<ObjectPtr> RemoteKube::Write(const std::string& method, Kind kind, const std::string& json,
                                    bool status) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  ApiPath path{kind, given.meta.name.ns, given.meta.name.name, status};
  if (method == "POST") path.name.clear();
  KVF_ASSIGN_OR_RETURN(std::string body, Call(method, FormatApiPath(path), json));
  KVF_ASSIGN_OR_RETURN(Object object, ParseObject(kind, std::move(body)));
  return ObjectPtr(std::make_shared<const Object>(std::move(object)));
}

Result<ObjectPtr> RemoteKube::Create(Kind kind, const std::string& json) {
  return Write("POST", kind, json, false);
}
Result<ObjectPtr> RemoteKube::Update(Kind kind, const std::string& json) {
  return Write("PUT", kind, json, false);
}
Result<ObjectPtr> RemoteKube::UpdateStatus(Kind kind, const std::string& json) {
  return Write("PUT", kind, json, true);
}

Result<ObjectPtr> RemoteKube::Apply(Kind kind, const std::string& /*json*/,
                                    const ApplyOptions& /*options*/) {
  return Unimplemented(std::string(TraitsOf(kind).name) + ": apply: not served yet");
}

Result<ObjectPtr> RemoteKube::Patch(Kind kind, const ObjectName& /*name*/, PatchType /*type*/,
                                    const std::string& /*patch*/, bool /*status*/) {
  return Unimplemented(std::string(TraitsOf(kind).name) + ": patch: not served yet");
}

Status RemoteKube::Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) {
  Json body = {{"kind", "DeleteOptions"}, {"apiVersion", "v1"}};
  if (!preconditions.uid.empty()) body["preconditions"]["uid"] = preconditions.uid;
  if (preconditions.resource_version != 0) {
    body["preconditions"]["resourceVersion"] = std::to_string(preconditions.resource_version);
  }
  const ApiPath path{kind, name.ns, name.name, false};
  return Call("DELETE", FormatApiPath(path), body.dump()).status();
}

}  // namespace kvfabric::kube
