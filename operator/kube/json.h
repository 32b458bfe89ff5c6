#pragma once

// Private to this module and to operator/specs: parsing JSON under limits, and reading fields
// without exceptions. Only .cc files include it; the DOM itself stays in them.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric::kube {

using Json = nlohmann::json;

// INVALID_ARGUMENT for text that is not one JSON value, nests deeper than kMaxJsonDepth or is
// longer than kMaxObjectBytes.
Result<Json> ParseJson(std::string_view text);
// Bytes that are not UTF-8 become U+FFFD: objects come from people.
std::string DumpJson(const Json& value);

// The member, or null when `object` is none or lacks it.
const Json* Find(const Json& object, std::string_view key);
// The member as text; "" when it is absent or no string.
std::string StringAt(const Json& object, std::string_view key);

}  // namespace kvfabric::kube
