#include "cli/node_objects.h"

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/specs/cluster_objects.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

constexpr int kMaxTries = 20;

Result<Json> ParseObjectText(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, false);
  if (!parsed.is_object()) return Internal("object: not a JSON object");
  return parsed;
}

// Carries over what the API gave, so that an update is one of the stored object.
void Adopt(Json& wanted, const Json& stored) {
  for (const char* field : {"resourceVersion", "uid"}) {
    if (stored.at("metadata").contains(field))
      wanted["metadata"][field] = stored.at("metadata").at(field);
  }
}

Result<kube::ObjectPtr> WriteOnce(kube::KubeClient& api, kube::Kind kind, Json wanted,
                                  const kube::ObjectName& name) {
  Result<kube::ObjectPtr> stored = api.Get(kind, name);
  if (!stored.ok()) {
    if (!kube::IsNotFound(stored.status())) return stored;
    return api.Create(kind, wanted.dump());
  }
  KVF_ASSIGN_OR_RETURN(const Json old, ParseObjectText((*stored)->json));
  Adopt(wanted, old);
  return api.Update(kind, wanted.dump());
}

}  // namespace

kube::ObjectName PodNameOf(const std::string& node) {
  return {.ns = kAgentNamespace, .name = "kvfabric-agent-" + node};
}

std::string NodeJson(const FabricNode& node) {
  Json labels = {{"kubernetes.io/hostname", node.name}};
  if (!node.zone.empty()) labels["topology.kubernetes.io/zone"] = node.zone;
  const Json json = {{"apiVersion", "v1"},
                     {"kind", "Node"},
                     {"metadata", {{"name", node.name}, {"labels", labels}}},
                     {"spec", Json::object()},
                     {"status", {{"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
  return json.dump();
}

std::string PodJson(const FabricNode& node) {
  const auto port = [](const char* name, std::uint16_t number) {
    return Json{{"name", name}, {"containerPort", number}, {"protocol", "TCP"}};
  };
  const Json container = {{"name", "agent"},
                          {"ports",
                           {port("grpc", node.ports.grpc), port("bulk", node.ports.bulk),
                            port("http", node.ports.http)}}};
  const kube::ObjectName name = PodNameOf(node.name);
  const Json json = {
      {"apiVersion", "v1"},
      {"kind", "Pod"},
      {"metadata",
       {{"name", name.name},
        {"namespace", name.ns},
        {"labels",
         {{"app.kubernetes.io/name", "kvfabric"}, {"app.kubernetes.io/component", "agent"}}}}},
      {"spec", {{"nodeName", node.name}, {"containers", {container}}}},
      {"status", {{"phase", "Running"}, {"podIP", "127.0.0.1"}}}};
  return json.dump();
}

Status ApplyObject(kube::KubeClient& api, kube::Kind kind, const std::string& json) {
  KVF_ASSIGN_OR_RETURN(Json wanted, ParseObjectText(json));
  KVF_ASSIGN_OR_RETURN(const kube::Object object, kube::ParseObject(kind, json));
  Status last;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    Result<kube::ObjectPtr> written = WriteOnce(api, kind, wanted, object.meta.name);
    if (written.ok() && wanted.contains("status") && kube::TraitsOf(kind).has_status) {
      KVF_ASSIGN_OR_RETURN(Json stored, ParseObjectText((*written)->json));
      stored["status"] = wanted["status"];
      written = api.UpdateStatus(kind, stored.dump());
    }
    last = written.status();
    if (!kube::IsConflict(last) && !kube::IsAlreadyExists(last)) return last;
  }
  return last;
}

Status SetAnnotation(kube::KubeClient& api, kube::Kind kind, const kube::ObjectName& name,
                     const std::string& key, const std::string& value) {
  Status last;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    KVF_ASSIGN_OR_RETURN(const kube::ObjectPtr stored, api.Get(kind, name));
    KVF_ASSIGN_OR_RETURN(Json json, ParseObjectText(stored->json));
    Json& annotations = json["metadata"]["annotations"];
    if (value.empty()) {
      if (annotations.is_object()) annotations.erase(key);
    } else {
      annotations[key] = value;
    }
    if (annotations.is_null() || annotations.empty()) json["metadata"].erase("annotations");
    last = api.Update(kind, json.dump()).status();
    if (!kube::IsConflict(last)) return last;
  }
  return last;
}

}  // namespace kvfabric::cli
