// What people and other servers write as resources: YAML, then every decoder of ours. Nothing may
// crash, hang or grow; what is taken must be the same when it is read again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "operator/kube/yaml.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/crd_schema.h"
#include "operator/specs/pool_spec.h"
#include "operator/specs/shard_map_object.h"

namespace {

using kvfabric::kube::Kind;

void Demand(bool condition) {
  if (!condition) std::abort();
}

void TryPool(const std::string& json) {
  std::vector<kvfabric::kube::Cause> faults;
  const auto checked = kvfabric::CrdSchema::Of(Kind::kPool).Check(json, nullptr, &faults);
  if (!checked.ok() || !faults.empty()) return;
  // A stored object is taken again, unchanged, as an update of itself.
  const auto again = kvfabric::CrdSchema::Of(Kind::kPool).Check(*checked, &*checked, &faults);
  Demand(again.ok() && *again == *checked && faults.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto documents = kvfabric::kube::YamlToJson(text);
  if (!documents.ok()) return 0;
  for (const std::string& json : *documents) {
    TryPool(json);
    const auto yaml = kvfabric::kube::JsonToYaml(json);
    if (yaml.ok() && json != "null") {
      // Reads back to the letter, but for non-characters, which YAML replaces by U+FFFD; the store
      // refuses those.
      const auto back = kvfabric::kube::YamlToJson(*yaml);
      Demand(back.ok() && back->size() == 1);
      Demand(back->front() == json || back->front().find("\xEF\xBF\xBD") != std::string::npos);
    }
    for (const auto& traits : kvfabric::kube::AllKinds()) {
      const auto object = kvfabric::kube::ParseObject(traits.kind, json);
      if (!object.ok()) continue;
      if (traits.kind == Kind::kPool) {
        const auto pool = kvfabric::DecodePool(*object);
        if (pool.ok() && pool->faults.empty()) {
          static_cast<void>(kvfabric::NotBuilt(pool->spec));
          Demand(kvfabric::WithStatus(pool->meta, pool->status).ok());
        }
      }
      if (traits.kind == Kind::kShardMap) {
        const auto map = kvfabric::DecodeShardMap(*object);
        if (map.ok()) Demand(map->map.Validate().ok());
      }
      static_cast<void>(kvfabric::DecodeNode(*object));
      static_cast<void>(kvfabric::DecodeAgentPod(*object));
    }
  }
  return 0;
}
