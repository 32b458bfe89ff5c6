#pragma once

// JSON of small objects for tests.

#include <cstdint>
#include <string>

namespace kvfabric::kube {

inline std::string NodeJson(const std::string& name, const std::string& extra_metadata = "",
                            const std::string& spec = "{}") {
  return R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")" + name + R"(")" +
         extra_metadata + R"(},"spec":)" + spec + "}";
}

inline std::string ConfigMapJson(const std::string& name, const std::string& value,
                                 const std::string& extra_metadata = "") {
  return R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":")" +
         name + R"(")" + extra_metadata + R"(},"data":{"k":")" + value + R"("}})";
}

inline std::string VersionField(std::uint64_t version) {
  return R"(,"resourceVersion":")" + std::to_string(version) + R"(")";
}

// A pool as far as the API without a schema cares.
inline std::string BarePoolJson(const std::string& name, const std::string& spec,
                                const std::string& extra_metadata = "",
                                const std::string& status = "") {
  std::string out =
      R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":{"namespace":)"
      R"("default","name":")" +
      name + R"(")" + extra_metadata + R"(},"spec":)" + spec;
  if (!status.empty()) out += R"(,"status":)" + status;
  return out + "}";
}

}  // namespace kvfabric::kube
