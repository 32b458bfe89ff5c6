#pragma once

// Changes written as patches, applied to the JSON of an object. Pure; private to this module.
//
// All bound their work: the depth of the patch, the number of operations, the size and depth of
// what comes out.

#include "operator/kube/json.h"
#include "operator/kube/merge_schema.h"

namespace kvfabric::kube {

inline constexpr std::size_t kMaxPatchOperations = 1000;

// RFC 7386: members that are null are removed, lists are replaced.
Status ApplyMergePatch(const Json& patch, Json& target);
// RFC 6902. INVALID_ARGUMENT names the operation that failed, a `test` among them.
Status ApplyJsonPatch(const Json& patch, Json& target);
// What kubectl sends for kinds that are built in: a merge patch in which lists that are maps or
// sets are merged, with the directives $patch (merge, replace, delete), $retainKeys,
// $deleteFromPrimitiveList/FIELD; $setElementOrder/FIELD is not needed by any reader and ignored.
Status ApplyStrategicPatch(const MergeNode& schema, const Json& patch, Json& target);

}  // namespace kvfabric::kube
