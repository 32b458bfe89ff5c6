#pragma once

// One object against a schema: first as it would be stored, then its faults. Private to
// operator/specs.

#include <vector>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/specs/schema_node.h"

namespace kvfabric {

// Makes the value what an API server stores: fills in what is absent or null and has a default,
// parents first, drops other nulls (but items of lists), writes 2.0 as 2 where the type is integer.
void Normalize(const SchemaNode& node, kube::Json& value);

// Appends every fault of `value` (defaults filled in), each with its path and what to write
// instead. `old` is the stored value, or null. Rules are asked where the value is otherwise valid.
void CheckValue(const SchemaNode& node, const kube::Json& value, const kube::Json* old,
                std::vector<kube::Cause>* faults);

}  // namespace kvfabric
