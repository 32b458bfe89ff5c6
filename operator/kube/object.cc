#include "operator/kube/object.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr std::array<KindTraits, kKindCount> kTraits = {{
    {Kind::kNode, "", "v1", "Node", "nodes", "no", false, true, true, true},
    {Kind::kNamespace, "", "v1", "Namespace", "namespaces", "ns", false, true, false, true},
    {Kind::kPod, "", "v1", "Pod", "pods", "po", true, true, false, true},
    {Kind::kConfigMap, "", "v1", "ConfigMap", "configmaps", "cm", true, false, false, true},
    {Kind::kSecret, "", "v1", "Secret", "secrets", "", true, false, false, true},
    {Kind::kDaemonSet, "apps", "v1", "DaemonSet", "daemonsets", "ds", true, true, false, true},
    {Kind::kLease, "coordination.k8s.io", "v1", "Lease", "leases", "", true, false, false, false},
    {Kind::kEvent, "events.k8s.io", "v1", "Event", "events", "ev", true, false, false, true},
    {Kind::kMutatingWebhook, "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration",
     "mutatingwebhookconfigurations", "", false, false, false, true},
    {Kind::kValidatingWebhook, "admissionregistration.k8s.io", "v1",
     "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "", false, false, false,
     true},
    {Kind::kPool, "kvfabric.io", "v1alpha1", "KVCachePool", "kvcachepools", "kvp", true, true,
     false, false},
    {Kind::kShardMap, "kvfabric.io", "v1alpha1", "KVCacheShardMap", "kvcacheshardmaps", "kvsm",
     true, false, false, false},
}};

bool IsLowerAlphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::map<std::string, std::string> StringMapAt(const Json& object, std::string_view key) {
  std::map<std::string, std::string> out;
  const Json* map = Find(object, key);
  if (map == nullptr || !map->is_object()) return out;
  for (const auto& [name, value] : map->items()) {
    if (value.is_string()) out.emplace(name, value.get<std::string>());
  }
  return out;
}

std::vector<OwnerReference> OwnersOf(const Json& metadata) {
  std::vector<OwnerReference> out;
  const Json* owners = Find(metadata, "ownerReferences");
  if (owners == nullptr || !owners->is_array()) return out;
  for (const Json& owner : *owners) {
    out.push_back({StringAt(owner, "kind"), StringAt(owner, "name"), StringAt(owner, "uid")});
  }
  return out;
}

Status ReadVersion(const Json& metadata, std::uint64_t* version) {
  const std::string text = StringAt(metadata, "resourceVersion");
  if (text.empty()) return Status::Ok();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *version);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("metadata.resourceVersion: \"" + text +
                           "\": must be the number the API gave; write back what was read");
  }
  return Status::Ok();
}

Status CheckName(const KindTraits& traits, const ObjectName& name) {
  if (!IsDnsSubdomain(name.name)) {
    return InvalidArgument("metadata.name: \"" + name.name +
                           "\": must be lower-case letters, digits, '-' and '.', start and end "
                           "with a letter or digit, at most 253 characters");
  }
  if (traits.namespaced != !name.ns.empty() || (traits.namespaced && !IsDnsLabel(name.ns))) {
    return InvalidArgument(
        "metadata.namespace: \"" + name.ns + "\": " +
        (traits.namespaced
             ? "must be lower-case letters, digits and '-', at most 63 characters"
             : "must be absent: " + std::string(traits.name) + " objects have no namespace"));
  }
  return Status::Ok();
}

}  // namespace

const KindTraits& TraitsOf(Kind kind) { return kTraits.at(static_cast<std::size_t>(kind)); }

std::span<const KindTraits> AllKinds() { return kTraits; }

std::optional<Kind> KindByName(std::string_view name) {
  const auto* it = std::find_if(kTraits.begin(), kTraits.end(),
                                [&](const KindTraits& traits) { return traits.name == name; });
  if (it == kTraits.end()) return std::nullopt;
  return it->kind;
}

std::string ApiVersionOf(Kind kind) {
  const KindTraits& traits = TraitsOf(kind);
  std::string out(traits.group);
  if (!out.empty()) out += '/';
  return out.append(traits.version);
}

bool IsDnsLabel(std::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  return IsLowerAlphanumeric(name.front()) && IsLowerAlphanumeric(name.back()) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return IsLowerAlphanumeric(c) || c == '-'; });
}

bool IsDnsSubdomain(std::string_view name) {
  if (name.empty() || name.size() > 253) return false;
  while (!name.empty()) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    // Parts of a subdomain may be longer than a label.
    if (part.empty() || !IsLowerAlphanumeric(part.front()) || !IsLowerAlphanumeric(part.back())) {
      return false;
    }
    if (!std::all_of(part.begin(), part.end(),
                     [](char c) { return IsLowerAlphanumeric(c) || c == '-'; })) {
      return false;
    }
    if (dot == std::string_view::npos) return true;
    name.remove_prefix(dot + 1);
  }
  return false;  // ended in a dot
}

Result<Object> ParseObject(Kind kind, std::string json) {
  const KindTraits& traits = TraitsOf(kind);
  KVF_ASSIGN_OR_RETURN(const Json root, ParseJson(json));
  if (!root.is_object()) return InvalidArgument(std::string(traits.name) + ": must be an object");
  if (StringAt(root, "kind") != traits.name) {
    return InvalidArgument("kind: \"" + StringAt(root, "kind") + "\": must be " +
                           std::string(traits.name));
  }
  if (StringAt(root, "apiVersion") != ApiVersionOf(kind)) {
    return InvalidArgument("apiVersion: \"" + StringAt(root, "apiVersion") + "\": must be " +
                           ApiVersionOf(kind));
  }
  const Json* metadata = Find(root, "metadata");
  if (metadata == nullptr || !metadata->is_object()) {
    return InvalidArgument("metadata: required; write metadata: {name: ...}");
  }
  Object object;
  object.kind = kind;
  ObjectMeta& meta = object.meta;
  meta.name = {StringAt(*metadata, "namespace"), StringAt(*metadata, "name")};
  KVF_RETURN_IF_ERROR(CheckName(traits, meta.name));
  KVF_RETURN_IF_ERROR(ReadVersion(*metadata, &meta.resource_version));
  meta.uid = StringAt(*metadata, "uid");
  const Json* generation = Find(*metadata, "generation");
  if (generation != nullptr && generation->is_number_integer()) {
    meta.generation = generation->get<std::int64_t>();
  }
  meta.creation_timestamp = StringAt(*metadata, "creationTimestamp");
  meta.deleting = !StringAt(*metadata, "deletionTimestamp").empty();
  meta.labels = StringMapAt(*metadata, "labels");
  meta.annotations = StringMapAt(*metadata, "annotations");
  meta.owners = OwnersOf(*metadata);
  object.json = std::move(json);
  return object;
}

}  // namespace kvfabric::kube
