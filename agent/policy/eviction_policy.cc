#include "agent/policy/eviction_policy.h"

#include <string>

#include "agent/policy/leaf_lru.h"

namespace kvfabric {

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                           EvictionPolicyOptions options) {
  if (name == "ReuseAware" || name == "LRU") {
    return std::unique_ptr<EvictionPolicy>(std::make_unique<LeafLru>(options));
  }
  if (name == "LFU" || name == "S3FIFO") {
    return Unimplemented("evictionPolicy " + std::string(name) +
                         ": make policy: not built yet (use ReuseAware or LRU)");
  }
  return InvalidArgument("evictionPolicy \"" + std::string(name) +
                         "\": make policy: unknown name (use ReuseAware, LRU, LFU or S3FIFO)");
}

}  // namespace kvfabric
