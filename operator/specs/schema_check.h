#pragma once

// One object against a schema: defaults, then faults. Private to operator/specs.

#include <vector>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/specs/schema_node.h"

namespace kvfabric {

// Fills in what is absent and has a default, parents first.
void FillDefaults(const SchemaNode& node, kube::Json& value);

// Appends every fault of `value` (defaults filled in), each with its path and what to write
// instead. `old` is the stored value, or null. Rules are asked where the value is otherwise valid.
void CheckValue(const SchemaNode& node, const kube::Json& value, const kube::Json* old,
                std::vector<kube::Cause>* faults);

}  // namespace kvfabric
