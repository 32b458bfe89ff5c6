#include "operator/kube/kubeconfig.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "operator/kube/json.h"
#include "operator/kube/pem.h"
#include "operator/kube/server_url.h"
#include "operator/kube/yaml.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxArguments = 1000;
constexpr std::string_view kExecV1 = "client.authentication.k8s.io/v1";
constexpr std::string_view kExecV1Beta1 = "client.authentication.k8s.io/v1beta1";

// A named cluster, user or context, and where it was written.
struct Entry {
  Json value;
  std::filesystem::path file;
};
using Entries = std::map<std::string, Entry>;

struct Merged {
  std::string current;
  Entries clusters;
  Entries users;
  Entries contexts;
};

// Reads one entry's fields and keeps the first fault.
class Fields {
 public:
  Fields(std::string what, const Entry& entry) : what_(std::move(what)), entry_(entry) {}

  std::string Text(const char* key) const { return StringAt(entry_.value, key); }
  bool Has(const char* key) const {
    const Json* value = Find(entry_.value, key);
    return value != nullptr && !value->is_null() && *value != "";
  }
  const Json* At(const char* key) const { return Find(entry_.value, key); }

  std::filesystem::path Path(const char* key) const {
    const std::filesystem::path path = Text(key);
    return path.empty() || path.is_absolute() ? path : entry_.file.parent_path() / path;
  }
  std::string Data(const char* key) {
    Result<std::string> data = DecodeBase64(Text(key));
    if (data.ok()) return std::move(data).value();
    Fail(std::string(key) + ": not base64");
    return "";
  }
  bool Flag(const char* key) {
    const std::string text = Text(key);
    if (!text.empty() && text != "true" && text != "false") {
      Fail(std::string(key) + ": write true or false");
    }
    return text == "true";
  }
  void Fail(const std::string& why) {
    if (status_.ok()) {
      status_ = InvalidArgument(entry_.file.string() + ": " + what_ + ": " + why);
    }
  }
  const std::filesystem::path& file() const { return entry_.file; }
  const Status& status() const { return status_; }

 private:
  const std::string what_;
  const Entry& entry_;
  Status status_;
};

Status AddEntries(const Json& root, const std::filesystem::path& file, const char* list,
                  const char* part, Entries* out) {
  const Json* entries = Find(root, list);
  if (entries == nullptr || entries->is_null()) return Status::Ok();
  if (!entries->is_array()) {
    return InvalidArgument(file.string() + ": " + list + ": must be a list");
  }
  Entries added;
  for (const Json& entry : *entries) {
    const std::string name = StringAt(entry, "name");
    const Json* value = Find(entry, part);
    if (name.empty() || value == nullptr || !value->is_object()) {
      return InvalidArgument(file.string() + ": " + list + ": each needs a name and a " + part);
    }
    if (!added.emplace(name, Entry{*value, file}).second) {
      return InvalidArgument(file.string() + ": " + list + ": \"" + name + "\" stands twice");
    }
  }
  out->merge(added);  // what is there stays
  return Status::Ok();
}

Status AddFile(const KubeconfigText& file, Merged* merged) {
  const std::string name = file.path.string();
  if (file.text.size() > kMaxFileBytes) return InvalidArgument(name + ": longer than 1 MiB");
  const Result<std::vector<std::string>> documents = YamlToJson(file.text, YamlScalars::kStrings);
  if (!documents.ok()) return documents.status().WithContext(name);
  if (documents->empty()) return Status::Ok();
  if (documents->size() > 1) return InvalidArgument(name + ": more than one YAML document");
  KVF_ASSIGN_OR_RETURN(const Json root, ParseJson(documents->front()));
  if (!root.is_object()) return InvalidArgument(name + ": not a kubeconfig");
  if (merged->current.empty()) merged->current = StringAt(root, "current-context");
  KVF_RETURN_IF_ERROR(AddEntries(root, file.path, "clusters", "cluster", &merged->clusters));
  KVF_RETURN_IF_ERROR(AddEntries(root, file.path, "users", "user", &merged->users));
  return AddEntries(root, file.path, "contexts", "context", &merged->contexts);
}

Status ReadCluster(Fields& fields, ApiTarget* out) {
  out->server = fields.Text("server");
  out->tls_server_name = fields.Text("tls-server-name");
  out->insecure = fields.Flag("insecure-skip-tls-verify");
  out->proxy = fields.Text("proxy-url");
  out->credentials.ca_pem = fields.Data("certificate-authority-data");
  out->credentials.ca_file = fields.Path("certificate-authority");
  const bool has_ca = !out->credentials.ca_pem.empty() || !out->credentials.ca_file.empty();
  if (out->server.empty()) fields.Fail("server: absent; write https://HOST:PORT");
  if (out->insecure && has_ca) {
    fields.Fail(
        "insecure-skip-tls-verify: it makes no sense beside a certificate-authority; "
        "remove one");
  }
  const bool known_proxy = out->proxy.empty() || out->proxy.rfind("http://", 0) == 0 ||
                           out->proxy.rfind("https://", 0) == 0 ||
                           out->proxy.rfind("socks5://", 0) == 0;
  if (!known_proxy) fields.Fail("proxy-url: write http://, https:// or socks5://HOST:PORT");
  if (fields.status().ok()) {
    const Result<ServerUrl> url = ParseServerUrl(out->server);
    if (!url.ok()) fields.Fail(url.status().message());
  }
  return fields.status();
}

// Of what the plugin is told about the cluster.
std::string ClusterJson(const ApiTarget& target) {
  Json out = {{"server", target.server}};
  if (!target.tls_server_name.empty()) out["tls-server-name"] = target.tls_server_name;
  if (target.insecure) out["insecure-skip-tls-verify"] = true;
  if (!target.proxy.empty()) out["proxy-url"] = target.proxy;
  return DumpJson(out);
}

void ReadExecLists(const Json& exec, Fields& fields, ExecConfig* out) {
  const Json* args = Find(exec, "args");
  const Json* env = Find(exec, "env");
  const auto is_list = [](const Json* value) {
    return value == nullptr || value->is_null() ||
           (value->is_array() && value->size() <= kMaxArguments);
  };
  if (!is_list(args) || !is_list(env)) return fields.Fail("exec: args and env must be lists");
  if (args != nullptr && args->is_array()) {
    for (const Json& arg : *args) {
      if (!arg.is_string()) return fields.Fail("exec: args: each must be a string");
      out->args.push_back(arg.get<std::string>());
    }
  }
  if (env == nullptr || !env->is_array()) return;
  for (const Json& entry : *env) {
    const std::string name = StringAt(entry, "name");
    if (name.empty() || name.find('=') != std::string::npos) {
      return fields.Fail("exec: env: each needs a name");
    }
    out->env.emplace_back(name, StringAt(entry, "value"));
  }
}

void ReadExec(const Json& exec, Fields& fields, ApiTarget* target) {
  ExecConfig out;
  out.api_version = StringAt(exec, "apiVersion");
  out.command = StringAt(exec, "command");
  out.install_hint = StringAt(exec, "installHint");
  if (out.api_version != kExecV1 && out.api_version != kExecV1Beta1) {
    return fields.Fail("exec: apiVersion: \"" + out.api_version + "\": must be " +
                       std::string(kExecV1) + "; use a newer version of the plugin");
  }
  if (out.command.empty()) return fields.Fail("exec: command: absent");
  if (StringAt(exec, "interactiveMode") == "Always") {
    return fields.Fail("exec: interactiveMode: Always: no terminal is at hand; use a token");
  }
  // A path, as opposed to a name, starts from the file it stands in.
  if (out.command.find('/') != std::string::npos && out.command.front() != '/') {
    out.command = (fields.file().parent_path() / out.command).string();
  }
  if (StringAt(exec, "provideClusterInfo") == "true") out.cluster_json = ClusterJson(*target);
  ReadExecLists(exec, fields, &out);
  target->credentials.exec = std::move(out);
}

Status ReadUser(Fields& fields, ApiTarget* target) {
  CredentialConfig& out = target->credentials;
  out.token = fields.Text("token");
  out.token_file = fields.Path("tokenFile");
  out.certificate_pem = fields.Data("client-certificate-data");
  out.certificate_file = fields.Path("client-certificate");
  out.key_pem = fields.Data("client-key-data");
  out.key_file = fields.Path("client-key");
  if (fields.Has("auth-provider")) {
    fields.Fail("auth-provider: removed from Kubernetes; use the provider's exec plugin");
  }
  if (fields.Has("username") || fields.Has("password")) {
    fields.Fail("username: API servers take no passwords any more; use a token");
  }
  for (const char* key : {"as", "as-uid", "as-groups", "as-user-extra"}) {
    if (fields.Has(key)) fields.Fail(std::string(key) + ": acting as others is not supported");
  }
  const bool has_certificate = !out.certificate_pem.empty() || !out.certificate_file.empty();
  const bool has_key = !out.key_pem.empty() || !out.key_file.empty();
  if (has_certificate != has_key) {
    fields.Fail("client-certificate and client-key: give both or none");
  }
  const Json* exec = fields.At("exec");
  if (exec != nullptr && exec->is_object()) ReadExec(*exec, fields, target);
  return fields.status();
}

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(path.string() + ": read: no such file, or not readable");
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

const Entry* FindEntry(const Entries& entries, const std::string& name) {
  const auto it = entries.find(name);
  return it == entries.end() ? nullptr : &it->second;
}

}  // namespace

Result<ApiTarget> ParseKubeconfig(const std::vector<KubeconfigText>& files,
                                  const std::string& context) {
  Merged merged;
  for (const KubeconfigText& file : files) KVF_RETURN_IF_ERROR(AddFile(file, &merged));
  const std::string first = files.empty() ? "kubeconfig" : files.front().path.string();
  const std::string wanted = context.empty() ? merged.current : context;
  if (wanted.empty()) return InvalidArgument(first + ": no current context");
  const Entry* chosen = FindEntry(merged.contexts, wanted);
  if (chosen == nullptr) {
    return InvalidArgument(first + ": no current context: there is none named \"" + wanted + "\"");
  }
  const std::string cluster_name = StringAt(chosen->value, "cluster");
  const std::string user_name = StringAt(chosen->value, "user");
  const Entry* cluster = FindEntry(merged.clusters, cluster_name);
  const Entry* user = FindEntry(merged.users, user_name);
  if (cluster == nullptr || (user == nullptr && !user_name.empty())) {
    return InvalidArgument(
        chosen->file.string() + ": context \"" + wanted + "\" names " +
        (cluster == nullptr ? "cluster \"" + cluster_name : "user \"" + user_name) +
        "\", which is nowhere");
  }
  ApiTarget out;
  const std::string ns = StringAt(chosen->value, "namespace");
  if (!ns.empty()) out.ns = ns;
  Fields cluster_fields("cluster \"" + cluster_name + "\"", *cluster);
  KVF_RETURN_IF_ERROR(ReadCluster(cluster_fields, &out));
  if (user == nullptr) return out;
  Fields user_fields("user \"" + user_name + "\"", *user);
  KVF_RETURN_IF_ERROR(ReadUser(user_fields, &out));
  return out;
}

std::vector<std::filesystem::path> KubeconfigFiles(const std::string& kubeconfig,
                                                   const std::string& home) {
  std::vector<std::filesystem::path> out;
  std::string_view rest = kubeconfig;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string_view file = rest.substr(0, colon);
    // One that stands twice says nothing new.
    if (!file.empty() && std::find(out.begin(), out.end(), file) == out.end()) {
      out.emplace_back(file);
    }
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (out.empty() && !home.empty()) {
    out.push_back(std::filesystem::path(home) / ".kube" / "config");
  }
  return out;
}

Result<ApiTarget> LoadKubeconfig(const std::vector<std::filesystem::path>& files,
                                 const std::string& context) {
  std::vector<KubeconfigText> texts;
  for (const std::filesystem::path& file : files) {
    std::error_code ignored;
    if (files.size() > 1 && !std::filesystem::exists(file, ignored)) continue;
    KVF_ASSIGN_OR_RETURN(std::string text, ReadFile(file));
    texts.push_back({std::filesystem::absolute(file, ignored), std::move(text)});
  }
  if (texts.empty()) return NotFound("kubeconfig: no file is there; set KUBECONFIG");
  return ParseKubeconfig(texts, context);
}

Result<ApiTarget> InClusterTarget(const InClusterSource& source) {
  if (source.host.empty() || source.port.empty()) {
    return FailedPrecondition(
        "api: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod; "
        "give a kubeconfig");
  }
  ApiTarget out;
  const bool ipv6 = source.host.find(':') != std::string::npos && source.host.front() != '[';
  out.server = "https://" + (ipv6 ? "[" + source.host + "]" : source.host) + ":" + source.port;
  KVF_RETURN_IF_ERROR(ParseServerUrl(out.server).status());
  out.credentials.ca_file = source.mount / "ca.crt";
  out.credentials.token_file = source.mount / "token";
  KVF_ASSIGN_OR_RETURN(const std::string text, ReadFile(source.mount / "namespace"));
  KVF_ASSIGN_OR_RETURN(out.ns, TokenOfText(text));
  return out;
}

}  // namespace kvfabric::kube
