#pragma once

// What `kubectl apply`, `kubectl explain` and `--validate` read of an API: OpenAPI v3 documents,
// one a group version, with the schemas of our kinds and the parameters of PATCH. Pure.

#include <functional>
#include <string>
#include <string_view>

#include "operator/kube/object.h"

namespace kvfabric::kube {

// The OpenAPI schema of a kind as JSON text; "" = nothing is known of its fields.
using SchemaText = std::function<std::string(Kind)>;

// The document at `path`: /openapi/v3 (the index) or /openapi/v3/apis/GROUP/VERSION and
// /openapi/v3/api/v1. "" for any other path.
std::string OpenApiBody(std::string_view path, std::string_view version, const SchemaText& schema);

}  // namespace kvfabric::kube
