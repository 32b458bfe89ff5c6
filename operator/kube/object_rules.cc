#include "operator/kube/object_rules.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

namespace kvfabric::kube {

std::string MakeUid() {
  std::random_device device;
  std::array<std::uint32_t, 4> word{device(), device(), device(), device()};
  word[1] = (word[1] & 0xFFFF0FFFU) | 0x00004000U;
  word[2] = (word[2] & 0x3FFFFFFFU) | 0x80000000U;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%04x%08x", word[0], word[1] >> 16U,
                word[1] & 0xFFFFU, word[2] >> 16U, word[2] & 0xFFFFU, word[3]);
  return text.data();
}

bool SameSpec(const Json& a, const Json& b) {
  const auto without = [](Json value) {
    value.erase("metadata");
    value.erase("status");
    return value;
  };
  return without(a) == without(b);
}

void KeepSystemFields(const Json& old_metadata, Json& metadata) {
  for (const char* key : {"uid", "creationTimestamp", "generation", "resourceVersion"}) {
    if (const Json* value = Find(old_metadata, key); value != nullptr) {
      metadata[key] = *value;
    } else {
      metadata.erase(key);
    }
  }
  for (const char* key : {"managedFields", "selfLink", "deletionTimestamp"}) metadata.erase(key);
  for (const char* key : {"labels", "annotations", "ownerReferences", "finalizers"}) {
    const Json* value = Find(metadata, key);
    if (value != nullptr && value->empty()) metadata.erase(key);
  }
}

void DropNulls(Json& value) {
  if (value.is_object()) {
    for (auto it = value.begin(); it != value.end();) {
      it = it->is_null() ? value.erase(it) : std::next(it);
    }
  }
  if (value.is_structured()) {
    for (Json& member : value) DropNulls(member);
  }
}

}  // namespace kvfabric::kube
