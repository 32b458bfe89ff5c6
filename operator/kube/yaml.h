#pragma once

// YAML in and out. One reader for everything people write: text -> JSON, after which YAML and
// JSON go the same way. Untagged scalars are typed by YAML 1.2's core schema: `yes` and `on` stay
// strings, and are refused where a boolean is due.

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvfabric::kube {

// JSON text of each document; empty documents are left out. INVALID_ARGUMENT names the line.
// Bounded: kMaxObjectBytes of text, kMaxJsonDepth levels, 100,000 values after aliases.
Result<std::vector<std::string>> YamlToJson(std::string_view yaml);
// Block style, two spaces; strings that would read as another type are quoted.
Result<std::string> JsonToYaml(std::string_view json);

}  // namespace kvfabric::kube
