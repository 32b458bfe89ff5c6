#pragma once

// Object: one Kubernetes object as it travels between our parts: its JSON text and the metadata
// that everybody needs, parsed once. Values; objects in caches are shared and never changed.
//
// Kind lists the kinds we use and nothing else; TraitsOf says where each lives in the API.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvfabric::kube {

enum class Kind : std::uint8_t {
  kNode,
  kNamespace,
  kPod,
  kConfigMap,
  kSecret,
  kDaemonSet,
  kLease,
  kEvent,
  kMutatingWebhook,
  kValidatingWebhook,
  kPool,
  kShardMap,
};
inline constexpr std::size_t kKindCount = 12;

struct KindTraits {
  Kind kind;
  std::string_view group;  // "" = core
  std::string_view version;
  std::string_view name;  // KVCachePool
  std::string_view plural;
  std::string_view short_name;  // "" = none
  bool namespaced;
  bool has_status;            // status is written through its own call only
  bool status_at_creation;    // a status given to Create is kept (Nodes register with theirs)
  bool unconditional_update;  // Update without a resourceVersion is allowed
};
const KindTraits& TraitsOf(Kind kind);
std::span<const KindTraits> AllKinds();
std::optional<Kind> KindByName(std::string_view name);
// `kvfabric.io/v1alpha1`, or `v1` for core kinds.
std::string ApiVersionOf(Kind kind);

struct ObjectName {
  std::string ns;  // empty for cluster-scoped kinds
  std::string name;

  auto operator<=>(const ObjectName&) const = default;
  bool operator==(const ObjectName&) const = default;
  std::string ToString() const { return ns.empty() ? name : ns + "/" + name; }
};

struct OwnerReference {
  std::string kind;
  std::string name;
  std::string uid;
};

struct ObjectMeta {
  ObjectName name;
  std::string uid;
  std::uint64_t resource_version = 0;  // comparable within a kind; 0 = not given
  std::int64_t generation = 0;         // moves when the spec changes, never with status
  std::string creation_timestamp;      // RFC 3339
  bool deleting = false;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::vector<OwnerReference> owners;
};

struct Object {
  Kind kind = Kind::kNode;
  ObjectMeta meta;
  std::string json;
};
using ObjectPtr = std::shared_ptr<const Object>;

// Bounds of one object: the API server's own limit on a request, and a nesting no kind of ours
// comes near.
inline constexpr std::size_t kMaxObjectBytes = std::size_t{3} << 20U;
inline constexpr std::size_t kMaxJsonDepth = 64;

// Reads apiVersion, kind and metadata. INVALID_ARGUMENT when the text is not JSON, is another
// kind, or has a name the API would refuse.
Result<Object> ParseObject(Kind kind, std::string json);

// Names as the API server takes them: RFC 1123, at most 253 and 63 characters.
bool IsDnsSubdomain(std::string_view name);
bool IsDnsLabel(std::string_view name);

}  // namespace kvfabric::kube
