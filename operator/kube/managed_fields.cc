#include "operator/kube/managed_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kBeforeFirstApply = "before-first-apply";
constexpr const char* kApplyWord = "Apply";

constexpr std::array<const char*, 9> kOwnMetadata = {"name",
                                                     "namespace",
                                                     "uid",
                                                     "resourceVersion",
                                                     "generation",
                                                     "managedFields",
                                                     "selfLink",
                                                     "creationTimestamp",
                                                     "deletionTimestamp"};

Result<ManagedEntry> ReadEntry(const Json& json) {
  ManagedEntry out;
  out.manager.name = StringAt(json, "manager");
  const std::string operation = StringAt(json, "operation");
  out.manager.apply = operation == kApplyWord;
  out.manager.subresource = StringAt(json, "subresource");
  out.api_version = StringAt(json, "apiVersion");
  out.time = StringAt(json, "time");
  const Json* fields = Find(json, "fieldsV1");
  if ((!out.manager.apply && operation != "Update") || fields == nullptr) {
    return InvalidArgument("managedFields: needs operation and fieldsV1");
  }
  KVF_ASSIGN_OR_RETURN(out.fields, FieldSet::FromFieldsV1(*fields));
  return out;
}

ManagedEntry* FindEntry(ManagedEntries& entries, const FieldManager& manager) {
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const ManagedEntry& e) { return e.manager == manager; });
  return it == entries.end() ? nullptr : &*it;
}

void DropEmptyEntries(ManagedEntries& entries) {
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [](const ManagedEntry& e) { return e.fields.empty(); }),
                entries.end());
}

std::string Describe(const ManagedEntry& entry) {
  std::string out = "conflict with \"" + entry.manager.name + "\"";
  if (!entry.manager.subresource.empty()) {
    out += " with subresource \"" + entry.manager.subresource + "\"";
  }
  return entry.manager.apply ? out : out + " using " + entry.api_version;
}

// What others own of `changed`, told as causes.
std::vector<Cause> ConflictsWith(const ManagedEntries& entries, const FieldManager& manager,
                                 const FieldSet& changed) {
  std::vector<Cause> out;
  for (const ManagedEntry& entry : entries) {
    if (entry.manager == manager) continue;
    entry.fields.Intersection(changed).ForEach([&](const std::string& path) {
      out.push_back({path, Describe(entry)});
    });
  }
  return out;
}

// Takes away from all but `manager` what changed hands or is gone.
void TakeFromOthers(const FieldManager& manager, const FieldSet& lost, ManagedEntries& entries) {
  for (ManagedEntry& entry : entries) {
    if (!(entry.manager == manager)) entry.fields = entry.fields.Minus(lost);
  }
}

}  // namespace

ManagedEntries ReadManaged(const Json& metadata) {
  ManagedEntries out;
  const Json* list = Find(metadata, "managedFields");
  if (list == nullptr || !list->is_array()) return out;
  for (const Json& json : *list) {
    Result<ManagedEntry> entry = ReadEntry(json);
    if (!entry.ok()) return {};
    if (!entry->fields.empty()) out.push_back(std::move(entry).value());
  }
  return out;
}

void WriteManaged(const ManagedEntries& entries, Json& metadata) {
  metadata.erase("managedFields");
  if (entries.empty()) return;
  Json& list = metadata["managedFields"] = Json::array();
  for (const ManagedEntry& entry : entries) {
    Json json = {{"manager", entry.manager.name},
                 {"operation", entry.manager.apply ? kApplyWord : "Update"},
                 {"apiVersion", entry.api_version},
                 {"time", entry.time},
                 {"fieldsType", "FieldsV1"},
                 {"fieldsV1", entry.fields.ToFieldsV1()}};
    if (!entry.manager.subresource.empty()) json["subresource"] = entry.manager.subresource;
    list.push_back(std::move(json));
  }
}

bool SameManaged(const ManagedEntries& a, const ManagedEntries& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const ManagedEntry& x, const ManagedEntry& y) {
        return x.manager == y.manager && x.api_version == y.api_version && x.fields == y.fields;
      });
}

void StampManaged(const ManagedEntries& before, const std::string& now, ManagedEntries& entries) {
  for (ManagedEntry& entry : entries) {
    const auto same = std::find_if(before.begin(), before.end(), [&](const ManagedEntry& old) {
      return old.manager == entry.manager && old.fields == entry.fields;
    });
    entry.time = same == before.end() ? now : same->time;
  }
}

Json OwnablePart(Json root) {
  root.erase("apiVersion");
  root.erase("kind");
  const auto metadata = root.find("metadata");
  if (metadata == root.end()) return root;
  if (metadata->is_object()) {
    for (const char* key : kOwnMetadata) metadata->erase(key);
  }
  if (metadata->empty()) root.erase(metadata);
  return root;
}

void RecordUpdate(const MergeNode& schema, const Json& before, const Json& after,
                  const FieldManager& manager, const std::string& api_version,
                  ManagedEntries& entries) {
  const Comparison compared = Compare(schema, before, after);
  const FieldSet changed = compared.added.Union(compared.modified);
  TakeFromOthers(manager, changed.Union(compared.removed), entries);
  ManagedEntry* mine = FindEntry(entries, manager);
  if (mine == nullptr) {
    entries.push_back({manager, api_version, "", {}});
    mine = &entries.back();
  }
  mine->fields = mine->fields.Minus(compared.removed).Union(changed);
  DropEmptyEntries(entries);
}

Result<Json> ApplyConfig(const MergeNode& schema, const ApplyRequest& request, const Json& live,
                         const Json& config, ManagedEntries& entries) {
  KVF_RETURN_IF_ERROR(CheckLists(schema, config));
  const std::string api_version = ApiVersionOf(request.kind);
  if (entries.empty() && !live.empty()) {
    entries.push_back({{kBeforeFirstApply, false, ""},
                       api_version,
                       "",
                       Compare(schema, Json::object(), live).added});
  }
  FieldSet last;
  ManagedEntry* mine = FindEntry(entries, request.manager);
  if (mine == nullptr) {
    entries.push_back({request.manager, api_version, "", {}});
    mine = &entries.back();
  } else {
    last = mine->fields;
  }
  mine->fields = config.empty() ? FieldSet() : FieldsOf(schema, config);
  mine->api_version = api_version;
  FieldSet managed;
  for (const ManagedEntry& entry : entries) managed = managed.Union(entry.fields);
  Json merged = MergeInto(schema, live, config);
  Prune(schema, last, managed, merged);
  const Comparison compared = Compare(schema, live, merged);
  const FieldSet changed = compared.added.Union(compared.modified);
  if (!request.force) {
    const std::vector<Cause> conflicts = ConflictsWith(entries, request.manager, changed);
    if (!conflicts.empty()) return FieldConflict(request.kind, request.name, conflicts);
  }
  TakeFromOthers(request.manager, changed.Union(compared.removed), entries);
  DropEmptyEntries(entries);
  return merged;
}

}  // namespace kvfabric::kube
