#include "operator/kube/embedded_kube_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/kube/managed_fields.h"
#include "operator/kube/object_patch.h"
#include "operator/kube/object_rules.h"
#include "operator/kube/timestamp.h"

namespace kvfabric::kube {
namespace {

Result<Object> Reparse(Kind kind, const Json& root) { return ParseObject(kind, DumpJson(root)); }

std::vector<MergeNode> MakeSchemas(const Admission* admission) {
  std::vector<MergeNode> out;
  for (const KindTraits& traits : AllKinds()) {
    const std::vector<ListRule> rules =
        admission == nullptr ? std::vector<ListRule>() : admission->ListRules(traits.kind);
    out.push_back(MergeNode::Of(traits.kind, rules));
  }
  return out;
}

Status VersionTooLarge(std::uint64_t asked, std::uint64_t current) {
  auto detail = std::make_shared<ApiDetail>();
  detail->http_code = 504;
  detail->reason = "Timeout";
  detail->cause_reasons = {"ResourceVersionTooLarge"};
  detail->retry_after = std::chrono::seconds(1);
  return {StatusCode::kUnavailable,
          "Too large resource version: " + std::to_string(asked) +
              ", current: " + std::to_string(current),
          std::move(detail)};
}

Status CheckManager(const std::string& manager) {
  if (manager.empty()) return InvalidArgument("fieldManager: must be given for an apply");
  if (manager.size() > kMaxManagerBytes) {
    return InvalidArgument("fieldManager: too long (limit " + std::to_string(kMaxManagerBytes) +
                           " bytes)");
  }
  return Status::Ok();
}

}  // namespace

// One change on its way into the store.
struct EmbeddedKubeApi::Write {
  Kind kind = Kind::kNode;
  ObjectPtr old;  // null = creation
  Json root;
  FieldManager manager;
  std::optional<ManagedEntries> managed;  // of an apply; unset = found by comparing
  bool dry_run = false;
};

// One watch's callback; outlives neither its stream nor a call in progress.
class EmbeddedKubeApi::Watcher {
 public:
  explicit Watcher(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}
  void Notify() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (on_ready_) on_ready_();
  }
  void Stop() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    on_ready_ = nullptr;
  }

 private:
  Mutex mu_;
  std::function<void()> on_ready_ GUARDED_BY(mu_);
};

class EmbeddedKubeApi::Stream final : public WatchStream {
 public:
  Stream(EmbeddedKubeApi& api, Kind kind, ObjectSelector selector, std::uint64_t version)
      : api_(api), kind_(kind), selector_(std::move(selector)), version_(version) {}
  ~Stream() override {
    watcher_->Stop();
    api_.Forget(kind_, watcher_);
  }
  Stream(const Stream&) = delete;  // registered by identity
  Stream& operator=(const Stream&) = delete;

  void set_watcher(std::shared_ptr<Watcher> watcher) { watcher_ = std::move(watcher); }
  void set_initial(std::vector<ObjectPtr> initial) { initial_ = std::move(initial); }
  Result<WatchBatch> Poll() override {
    if (initial_.has_value()) {
      WatchBatch batch;
      for (ObjectPtr& object : *initial_) {
        batch.events.push_back({EventType::kAdded, std::move(object)});
      }
      initial_.reset();
      batch.resource_version = version_;
      batch.initial_done = true;
      return batch;
    }
    Result<WatchBatch> batch = api_.Poll(kind_, selector_, version_);
    if (batch.ok()) version_ = batch->resource_version;
    return batch;
  }

 private:
  EmbeddedKubeApi& api_;  // outlives its streams
  const Kind kind_;
  const ObjectSelector selector_;
  std::uint64_t version_;                          // the polling thread's
  std::optional<std::vector<ObjectPtr>> initial_;  // the polling thread's
  std::shared_ptr<Watcher> watcher_;
};

EmbeddedKubeApi::EmbeddedKubeApi(Options options, std::unique_ptr<ObjectStore> store)
    : options_(std::move(options)),
      schemas_(MakeSchemas(options_.admission)),
      store_(std::move(store)) {}

EmbeddedKubeApi::~EmbeddedKubeApi() = default;

Result<std::unique_ptr<EmbeddedKubeApi>> EmbeddedKubeApi::Open(Options options) {
  KVF_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store,
                       ObjectStore::Open({options.directory, options.fault, options.sync}));
  std::vector<Object> loaded = store->TakeLoaded();
  const std::uint64_t start = store->last_revision();
  std::unique_ptr<EmbeddedKubeApi> api(new EmbeddedKubeApi(std::move(options), std::move(store)));
  MutexLock write_lock(api->write_mu_);
  {
    MutexLock lock(api->mu_);
    for (auto& table : api->tables_) {
      table = std::make_unique<Table>(WatchRing(api->options_.ring, start));
    }
    for (Object& object : loaded) {
      auto& objects = api->TableOf(object.kind).objects;
      const ObjectName name = object.meta.name;
      objects[name] = std::make_shared<const Object>(std::move(object));
    }
    api->current_ = start;
  }
  api->CollectOrphans();
  return api;
}

ObjectPtr EmbeddedKubeApi::Find(Kind kind, const ObjectName& name) const {
  MutexLock lock(mu_);
  const auto& objects = TableOf(kind).objects;
  const auto it = objects.find(name);
  return it == objects.end() ? nullptr : it->second;
}

Result<ObjectList> EmbeddedKubeApi::List(Kind kind, const std::string& ns) {
  ObjectList out;
  MutexLock lock(mu_);
  out.resource_version = current_;
  for (const auto& [name, object] : TableOf(kind).objects) {
    if (ns.empty() || name.ns == ns) out.items.push_back(object);
  }
  return out;
}

Result<ObjectPtr> EmbeddedKubeApi::Get(Kind kind, const ObjectName& name) {
  ObjectPtr object = Find(kind, name);
  if (object == nullptr) return ObjectNotFound(kind, name);
  return object;
}

std::uint64_t EmbeddedKubeApi::writes(Kind kind) const {
  MutexLock lock(mu_);
  return TableOf(kind).writes;
}

Result<std::string> EmbeddedKubeApi::Admit(Kind kind, const std::string& json,
                                           const std::string* old) const {
  if (options_.admission == nullptr) return json;
  return options_.admission->Admit(kind, json, old);
}

Status EmbeddedKubeApi::CheckRoom(Kind kind) const {
  MutexLock lock(mu_);
  if (TableOf(kind).objects.size() < options_.max_objects_per_kind) return Status::Ok();
  return ResourceExhausted(std::string(TraitsOf(kind).plural) + ": create: too many (limit " +
                           std::to_string(options_.max_objects_per_kind) + ")");
}

Result<ObjectPtr> EmbeddedKubeApi::Create(Kind kind, const std::string& json,
                                          const WriteOptions& options) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  MutexLock write_lock(write_mu_);
  if (Find(kind, given.meta.name) != nullptr) return ObjectExists(kind, given.meta.name);
  if (given.meta.resource_version != 0) {
    return InvalidArgument("metadata.resourceVersion: must be absent at creation");
  }
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(json));
  return Finish({kind,
                 nullptr,
                 std::move(root),
                 {options.field_manager, false, ""},
                 ManagedEntries(),
                 options.dry_run});
}

Status EmbeddedKubeApi::CheckGuards(const Object& given, const Object& old) {
  const ObjectName& name = old.meta.name;
  if (given.meta.resource_version != 0 &&
      given.meta.resource_version != old.meta.resource_version) {
    return Conflict(old.kind, name, "it has changed since it was read");
  }
  if (!given.meta.uid.empty() && given.meta.uid != old.meta.uid) {
    return Conflict(old.kind, name, "it is another object of the same name");
  }
  return Status::Ok();
}

Result<ObjectPtr> EmbeddedKubeApi::Replace(Kind kind, const std::string& json, bool status,
                                           const WriteOptions& options) {
  const KindTraits& traits = TraitsOf(kind);
  if (status && !traits.has_status) {
    return Unimplemented(std::string(traits.name) + ": has no status of its own");
  }
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  const ObjectName& name = given.meta.name;
  MutexLock write_lock(write_mu_);
  const ObjectPtr old = Find(kind, name);
  if (old == nullptr) return ObjectNotFound(kind, name);
  if (given.meta.resource_version == 0 && !traits.unconditional_update) {
    return Invalid(kind, name, {{"metadata.resourceVersion", "must be given for an update"}});
  }
  return Overwrite(old, json, status, options);
}

Result<ObjectPtr> EmbeddedKubeApi::Overwrite(const ObjectPtr& old, const std::string& json,
                                             bool status, const WriteOptions& options) {
  const KindTraits& traits = TraitsOf(old->kind);
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(old->kind, json));
  KVF_RETURN_IF_ERROR(CheckGuards(given, *old));
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(json));
  KVF_ASSIGN_OR_RETURN(Json old_root, ParseJson(old->json));
  if (status) {
    Json wanted = root.contains("status") ? std::move(root["status"]) : Json(nullptr);
    root = std::move(old_root);
    root["status"] = std::move(wanted);
  } else if (traits.has_status) {
    root.erase("status");
    if (old_root.contains("status")) root["status"] = std::move(old_root["status"]);
  }
  if (root.contains("status") && root["status"].is_null()) root.erase("status");
  return Finish({old->kind,
                 old,
                 std::move(root),
                 {options.field_manager, false, status ? "status" : ""},
                 std::nullopt,
                 options.dry_run});
}

Result<ObjectPtr> EmbeddedKubeApi::Patch(Kind kind, const ObjectName& name,
                                         const PatchRequest& patch, const WriteOptions& options) {
  if (patch.status && !TraitsOf(kind).has_status) {
    return Unimplemented(std::string(TraitsOf(kind).name) + ": has no status of its own");
  }
  KVF_ASSIGN_OR_RETURN(const Json change, ParseJson(patch.text));
  MutexLock write_lock(write_mu_);
  const ObjectPtr old = Find(kind, name);
  if (old == nullptr) return ObjectNotFound(kind, name);
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(old->json));
  Status applied;
  switch (patch.format) {
    case PatchFormat::kMerge:
      applied = ApplyMergePatch(change, root);
      break;
    case PatchFormat::kJson:
      applied = ApplyJsonPatch(change, root);
      break;
    case PatchFormat::kStrategic:
      applied = ApplyStrategicPatch(SchemaOf(kind), change, root);
      break;
  }
  if (!applied.ok()) return Invalid(kind, name, {{"patch", std::string(applied.message())}});
  const std::string patched = DumpJson(root);
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, patched));
  if (given.meta.name != name) {
    return Invalid(kind, name, {{"metadata.name", "must stay: the patch names another object"}});
  }
  return Overwrite(old, patched, patch.status, options);
}

Result<ObjectPtr> EmbeddedKubeApi::Apply(Kind kind, const std::string& json,
                                         const ApplyOptions& options, bool dry_run) {
  const KindTraits& traits = TraitsOf(kind);
  KVF_RETURN_IF_ERROR(CheckManager(options.field_manager));
  if (options.status && !traits.has_status) {
    return Unimplemented(std::string(traits.name) + ": has no status of its own");
  }
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  const ObjectName& name = given.meta.name;
  KVF_ASSIGN_OR_RETURN(Json config, ParseJson(json));
  if (config["metadata"].contains("managedFields")) {
    return InvalidArgument("metadata.managedFields: must be absent in an apply");
  }
  DropNulls(config);
  config = OwnablePart(std::move(config));
  if (options.status) {
    Json status = config.contains("status") ? std::move(config["status"]) : Json(nullptr);
    config = Json::object();
    if (!status.is_null()) config["status"] = std::move(status);
  } else if (traits.has_status) {
    config.erase("status");
  }
  MutexLock write_lock(write_mu_);
  const ObjectPtr old = Find(kind, name);
  Json live = Json::object();
  Json metadata = Json::object();
  ManagedEntries managed;
  if (old != nullptr) {
    KVF_RETURN_IF_ERROR(CheckGuards(given, *old));
    KVF_ASSIGN_OR_RETURN(live, ParseJson(old->json));
    metadata = live["metadata"];
    managed = ReadManaged(metadata);
    live = OwnablePart(std::move(live));
  } else if (options.status) {
    return ObjectNotFound(kind, name);
  } else if (given.meta.resource_version != 0 || !given.meta.uid.empty()) {
    return Conflict(kind, name, "it is not there any more");
  }
  const FieldManager manager{options.field_manager, true, options.status ? "status" : ""};
  Result<Json> root =
      ApplyConfig(SchemaOf(kind), {kind, name, manager, options.force}, live, config, managed);
  if (IsInvalid(root.status())) {
    return Invalid(kind, name, {{"apply", std::string(root.status().message())}});
  }
  if (!root.ok()) return root.status();
  (*root)["apiVersion"] = ApiVersionOf(kind);
  (*root)["kind"] = traits.name;
  (*root)["metadata"]["name"] = name.name;
  if (!name.ns.empty()) (*root)["metadata"]["namespace"] = name.ns;
  return Finish({kind, old, std::move(root).value(), manager, std::move(managed), dry_run});
}

Result<ObjectPtr> EmbeddedKubeApi::Finish(Write write) {
  const Kind kind = write.kind;
  const ObjectPtr& old = write.old;
  if (old == nullptr) KVF_RETURN_IF_ERROR(CheckRoom(kind));
  KVF_ASSIGN_OR_RETURN(const std::string admitted,
                       Admit(kind, DumpJson(write.root), old == nullptr ? nullptr : &old->json));
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(admitted));
  Json old_root = Json::object();
  if (old != nullptr) {
    KVF_ASSIGN_OR_RETURN(old_root, ParseJson(old->json));
  }
  Json& metadata = root["metadata"];
  const Json old_metadata = old == nullptr ? Json::object() : old_root["metadata"];
  const ManagedEntries before = ReadManaged(old_metadata);
  ManagedEntries given = ReadManaged(metadata);
  KeepSystemFields(old_metadata, metadata);
  if (old == nullptr) {
    metadata["uid"] = MakeUid();
    metadata["creationTimestamp"] = FormatTime(options_.clock->UnixMicros());
    metadata["generation"] = 1;
    if (TraitsOf(kind).has_status && !TraitsOf(kind).status_at_creation) root.erase("status");
  }
  if (!write.managed.has_value() && !before.empty()) {
    // Whoever hands managers over writes the new list; nobody else sends another one than is there.
    write.managed = given.empty() ? before : std::move(given);
    RecordUpdate(SchemaOf(kind), OwnablePart(old_root), OwnablePart(root), write.manager,
                 ApiVersionOf(kind), *write.managed);
  }
  if (write.managed.has_value() && !SameManaged(before, *write.managed)) {
    StampManaged(before, FormatTime(options_.clock->UnixMicros()), *write.managed);
    WriteManaged(*write.managed, metadata);
  } else if (const Json* kept = kube::Find(old_metadata, "managedFields")) {
    metadata["managedFields"] = *kept;
  }
  if (old != nullptr) {
    if (root == old_root) return old;
    if (!SameSpec(root, old_root)) metadata["generation"] = old->meta.generation + 1;
  }
  KVF_ASSIGN_OR_RETURN(Object object, Reparse(kind, root));
  if (write.dry_run) return ObjectPtr(std::make_shared<const Object>(std::move(object)));
  return Commit(std::move(object), old == nullptr ? EventType::kAdded : EventType::kModified);
}

Status EmbeddedKubeApi::Delete(Kind kind, const ObjectName& name,
                               const Preconditions& preconditions, bool dry_run) {
  MutexLock write_lock(write_mu_);
  const ObjectPtr object = Find(kind, name);
  if (object == nullptr) return ObjectNotFound(kind, name);
  Object given;
  given.meta.uid = preconditions.uid;
  given.meta.resource_version = preconditions.resource_version;
  KVF_RETURN_IF_ERROR(CheckGuards(given, *object));
  if (dry_run) return Status::Ok();
  KVF_RETURN_IF_ERROR(Remove(object));
  CollectOrphans();
  return Status::Ok();
}

Result<ObjectPtr> EmbeddedKubeApi::Commit(Object object, EventType type) {
  const Kind kind = object.kind;
  const ObjectName name = object.meta.name;
  KVF_ASSIGN_OR_RETURN(const std::uint64_t version, store_->NextRevision());
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(object.json));
  root["metadata"]["resourceVersion"] = std::to_string(version);
  KVF_ASSIGN_OR_RETURN(object, Reparse(kind, root));
  bool renamed = false;
  const Status written = store_->Write(kind, name, object.json, &renamed);
  if (!renamed) return written.WithContext("write " + name.ToString());
  auto stored = std::make_shared<const Object>(std::move(object));
  Publish({type, stored});
  // The file holds the new object, so readers must see it; only its safety from a power cut is
  // unknown, and the writer is told.
  if (!written.ok()) return written.WithContext("written, but not yet safe: " + name.ToString());
  return ObjectPtr(stored);
}

Status EmbeddedKubeApi::Remove(const ObjectPtr& object) {
  KVF_ASSIGN_OR_RETURN(const std::uint64_t version, store_->NextRevision());
  bool removed = false;
  const Status outcome = store_->Remove(object->kind, object->meta.name, &removed);
  if (!removed) return outcome;
  KVF_ASSIGN_OR_RETURN(Object last, WithVersion(*object, version));
  Publish({EventType::kDeleted, std::make_shared<const Object>(std::move(last))});
  return outcome;
}

void EmbeddedKubeApi::Publish(WatchEvent event) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    const ObjectPtr& object = event.object;
    Table& table = TableOf(object->kind);
    ObjectPtr previous;
    if (event.type == EventType::kDeleted) {
      table.objects.erase(object->meta.name);
    } else {
      ObjectPtr& stored = table.objects[object->meta.name];
      previous = std::exchange(stored, object);
    }
    current_ = object->meta.resource_version;
    ++table.writes;
    watchers.assign(table.watchers.begin(), table.watchers.end());
    table.ring.Push(std::move(event), std::move(previous));
  }
  for (const auto& watcher : watchers) watcher->Notify();
}

void EmbeddedKubeApi::CollectOrphans() {
  std::vector<ObjectPtr> orphans;
  {
    MutexLock lock(mu_);
    std::set<std::string> uids;
    for (const auto& table : tables_) {
      for (const auto& [name, object] : table->objects) uids.insert(object->meta.uid);
    }
    const auto gone = [&](const OwnerReference& owner) { return uids.count(owner.uid) == 0; };
    for (const auto& table : tables_) {
      for (const auto& [name, object] : table->objects) {
        const auto& owners = object->meta.owners;
        if (!owners.empty() && std::all_of(owners.begin(), owners.end(), gone)) {
          orphans.push_back(object);
        }
      }
    }
  }
  for (const ObjectPtr& orphan : orphans) {
    const Status removed = Remove(orphan);
    if (!removed.ok()) {  // the next deletion or start tries again
      LogWarn("orphan stays",
              {{"object", orphan->meta.name.ToString()}, {"reason", removed.message()}});
    }
  }
}

// A whole list, given by the first Poll.
class EmbeddedKubeApi::Snapshot final : public ListStream {
 public:
  explicit Snapshot(ObjectList list) : list_(std::move(list)) {}
  Result<ListBatch> Poll() override {
    return ListBatch{std::exchange(list_.items, {}), true, list_.resource_version};
  }

 private:
  ObjectList list_;
};

Result<ObjectList> EmbeddedKubeApi::Select(Kind kind, const ObjectSelector& selector,
                                           std::optional<std::uint64_t> not_older_than) const {
  ObjectList out;
  MutexLock lock(mu_);
  out.resource_version = current_;
  if (not_older_than.value_or(0) > current_) return VersionTooLarge(*not_older_than, current_);
  for (const auto& [name, object] : TableOf(kind).objects) {
    if (selector.Matches(*object)) out.items.push_back(object);
  }
  return out;
}

Result<std::unique_ptr<ListStream>> EmbeddedKubeApi::StartList(
    Kind kind, const Scope& scope, std::optional<std::uint64_t> not_older_than,
    std::function<void()> on_ready) {
  KVF_ASSIGN_OR_RETURN(const ObjectSelector selector, ObjectSelector::Parse(kind, scope));
  KVF_ASSIGN_OR_RETURN(ObjectList list, Select(kind, selector, not_older_than));
  if (on_ready) on_ready();
  return std::unique_ptr<ListStream>(new Snapshot(std::move(list)));
}

Result<std::unique_ptr<WatchStream>> EmbeddedKubeApi::Watch(Kind kind, const Scope& scope,
                                                            const WatchFrom& from,
                                                            std::function<void()> on_ready) {
  KVF_ASSIGN_OR_RETURN(ObjectSelector selector, ObjectSelector::Parse(kind, scope));
  std::uint64_t version = from.resource_version;
  std::optional<std::vector<ObjectPtr>> initial;
  if (from.initial_events) {
    KVF_ASSIGN_OR_RETURN(ObjectList list, Select(kind, selector, std::nullopt));
    version = list.resource_version;
    initial = std::move(list.items);
  } else {
    KVF_RETURN_IF_ERROR(Poll(kind, selector, version).status());
  }
  auto watcher = std::make_shared<Watcher>(std::move(on_ready));
  auto stream = std::make_unique<Stream>(*this, kind, std::move(selector), version);
  stream->set_watcher(watcher);
  if (initial.has_value()) stream->set_initial(*std::move(initial));
  {
    MutexLock lock(mu_);
    TableOf(kind).watchers.insert(watcher);
  }
  // What happened before this line is found by the first Poll.
  watcher->Notify();
  return std::unique_ptr<WatchStream>(std::move(stream));
}

Result<WatchBatch> EmbeddedKubeApi::Poll(Kind kind, const ObjectSelector& selector,
                                         std::uint64_t version) const {
  MutexLock lock(mu_);
  if (version > current_) return VersionTooLarge(version, current_);
  return TableOf(kind).ring.After(version, selector, current_);
}

void EmbeddedKubeApi::Forget(Kind kind, const std::shared_ptr<Watcher>& watcher) {
  MutexLock lock(mu_);
  TableOf(kind).watchers.erase(watcher);
}

}  // namespace kvfabric::kube
