#pragma once

// YAML in and out. One reader for everything people write: text -> JSON, after which YAML and
// JSON go the same way. Untagged scalars are typed by YAML 1.2's core schema: `yes` and `on` stay
// strings, and are refused where a boolean is due.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvfabric::kube {

enum class YamlScalars : std::uint8_t {
  kTyped,
  kStrings,  // untagged ones stay text (`token: 0123`); empty ones and `null` are null
};

// JSON text of each document; empty documents are left out. INVALID_ARGUMENT names the line.
// Bounded: kMaxObjectBytes of text before and after aliases, kMaxJsonDepth levels, 100,000 values
// and 1,000 documents.
Result<std::vector<std::string>> YamlToJson(std::string_view yaml,
                                            YamlScalars scalars = YamlScalars::kTyped);
// Block style, two spaces; strings that would read as another type are quoted. INVALID_ARGUMENT for
// a key over 512 bytes, which could not be read back.
Result<std::string> JsonToYaml(std::string_view json);

}  // namespace kvfabric::kube
