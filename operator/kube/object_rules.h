#pragma once

// What the API itself has a say in of an object's JSON. Pure; private to this module.

#include <string>

#include "operator/kube/json.h"

namespace kvfabric::kube {

// Random, version 4.
std::string MakeUid();

// What generation counts: everything but metadata and status.
bool SameSpec(const Json& a, const Json& b);

// Fields of metadata that are the API's own: they come from the stored object. Empty lists and maps
// of metadata do not exist, as the API server writes it.
void KeepSystemFields(const Json& old_metadata, Json& metadata);

// A manager's intent: members that are null say nothing.
void DropNulls(Json& value);

}  // namespace kvfabric::kube
