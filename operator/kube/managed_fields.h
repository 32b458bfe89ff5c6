#pragma once

// Who owns which field of an object: metadata.managedFields as the API server keeps it, and what
// server-side apply and other writes do to it. Pure; private to this module: it speaks JSON.
//
// An object that was never applied carries no managedFields: nobody could come into conflict, and
// most of our objects are written by one writer. With the first Apply everything that is there
// falls to `before-first-apply`; from then on every write is recorded. Sets never name what is the
// API's own: apiVersion, kind, name, uid, versions, times.

#include <string>
#include <vector>

#include "operator/kube/apply_merge.h"
#include "operator/kube/field_set.h"
#include "operator/kube/json.h"
#include "operator/kube/merge_schema.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {

inline constexpr std::size_t kMaxManagerBytes = 128;

// Who writes. `apply` managers say all they want each time; the others (`Update`) own what they
// changed.
struct FieldManager {
  std::string name;
  bool apply = false;
  std::string subresource;  // "" or `status`

  bool operator==(const FieldManager&) const = default;
};

struct ManagedEntry {
  FieldManager manager;
  std::string api_version;
  std::string time;  // RFC 3339: of the last change of `fields`
  FieldSet fields;
};
using ManagedEntries = std::vector<ManagedEntry>;

// What `metadata` carries. Entries nobody can read are as good as none, as the API server has it.
ManagedEntries ReadManaged(const Json& metadata);
// Replaces what `metadata` carries; none = no managedFields.
void WriteManaged(const ManagedEntries& entries, Json& metadata);
// Whether both say the same, times apart.
bool SameManaged(const ManagedEntries& a, const ManagedEntries& b);
// Entries whose fields are as in `before` keep its time; the others get `now`.
void StampManaged(const ManagedEntries& before, const std::string& now, ManagedEntries& entries);

// An object without what is the API's own: what managers can own.
Json OwnablePart(Json root);

// `manager` wrote `after` over `before` (both ownable parts): what it changed is its own now, what
// it removed is nobody's.
void RecordUpdate(const MergeNode& schema, const Json& before, const Json& after,
                  const FieldManager& manager, const std::string& api_version,
                  ManagedEntries& entries);

// One server-side apply. All values are ownable parts.
struct ApplyRequest {
  Kind kind = Kind::kNode;
  ObjectName name;
  FieldManager manager;
  bool force = false;
};
// `live` as it is after `config` was applied; `entries` follow. Conflict with cause
// FieldManagerConflict for each field of another manager that would change, unless forced.
Result<Json> ApplyConfig(const MergeNode& schema, const ApplyRequest& request, const Json& live,
                         const Json& config, ManagedEntries& entries);

}  // namespace kvfabric::kube
