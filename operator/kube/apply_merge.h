#pragma once

// The arithmetic of server-side apply on JSON values: which fields a value has, how two values
// differ, merging one into the other, removing fields. Pure; operator/kube/managed_fields.h decides
// what is merged and removed.

#include <optional>
#include <string>

#include "operator/kube/field_set.h"
#include "operator/kube/json.h"
#include "operator/kube/merge_schema.h"

namespace kvfabric::kube {

// The edge to an item of a list that is a set or a map; nullopt when a key is missing.
std::optional<std::string> ItemEdge(const MergeNode& list, const Json& item);

// Every fault of the lists of `config` that are sets or maps: keys missing, items twice. OK when
// there is none.
Status CheckLists(const MergeNode& node, const Json& config);

// The fields that somebody who wrote `value` has said something about. Members of an object that
// has members are not fields themselves; items of lists are, empty objects too.
FieldSet FieldsOf(const MergeNode& node, const Json& value);

// Fields that are new, have another value, are gone.
struct Comparison {
  FieldSet added;
  FieldSet modified;
  FieldSet removed;
};
Comparison Compare(const MergeNode& node, const Json& old_value, const Json& new_value);

// `live` with everything that `config` says. Of lists that are sets or maps the items of `config`
// stand in its order, the others stay behind what they stood behind.
Json MergeInto(const MergeNode& node, const Json& live, const Json& config);

// Removes from `value` what is in `last` and no longer in `managed`: a member with nothing managed
// in it, an item that nobody has.
void Prune(const MergeNode& node, const FieldSet& last, const FieldSet& managed, Json& value);

}  // namespace kvfabric::kube
