#include "operator/kube/embedded_kube_api.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/kube/timestamp.h"

namespace kvfabric::kube {
namespace {

// Random, version 4.
std::string MakeUid() {
  std::random_device device;
  std::array<std::uint32_t, 4> word{device(), device(), device(), device()};
  word[1] = (word[1] & 0xFFFF0FFFU) | 0x00004000U;
  word[2] = (word[2] & 0x3FFFFFFFU) | 0x80000000U;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%04x%08x", word[0], word[1] >> 16U,
                word[1] & 0xFFFFU, word[2] >> 16U, word[2] & 0xFFFFU, word[3]);
  return text.data();
}

// What generation counts: everything but metadata and status.
bool SameSpec(const Json& a, const Json& b) {
  const auto without = [](Json value) {
    value.erase("metadata");
    value.erase("status");
    return value;
  };
  return without(a) == without(b);
}

// Fields of metadata that are the API's own: they come from the stored object.
void KeepSystemFields(const Json& old_metadata, Json& metadata) {
  for (const char* key : {"uid", "creationTimestamp", "generation", "resourceVersion"}) {
    if (const Json* value = kube::Find(old_metadata, key); value != nullptr) {
      metadata[key] = *value;
    } else {
      metadata.erase(key);
    }
  }
  for (const char* key : {"managedFields", "selfLink", "deletionTimestamp"}) metadata.erase(key);
}

Result<Object> Reparse(Kind kind, const Json& root) { return ParseObject(kind, DumpJson(root)); }

}  // namespace

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
  Stream(EmbeddedKubeApi& api, Kind kind, std::string ns, std::uint64_t version)
      : api_(api), kind_(kind), ns_(std::move(ns)), version_(version) {}
  ~Stream() override {
    watcher_->Stop();
    api_.Forget(kind_, watcher_);
  }
  Stream(const Stream&) = delete;  // registered by identity
  Stream& operator=(const Stream&) = delete;

  void set_watcher(std::shared_ptr<Watcher> watcher) { watcher_ = std::move(watcher); }
  Result<WatchBatch> Poll() override {
    Result<WatchBatch> batch = api_.Poll(kind_, ns_, version_);
    if (batch.ok()) version_ = batch->resource_version;
    return batch;
  }

 private:
  EmbeddedKubeApi& api_;  // outlives its streams
  const Kind kind_;
  const std::string ns_;
  std::uint64_t version_;  // the polling thread's
  std::shared_ptr<Watcher> watcher_;
};

EmbeddedKubeApi::EmbeddedKubeApi(Options options, std::unique_ptr<ObjectStore> store)
    : options_(std::move(options)), store_(std::move(store)) {}

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

Result<ObjectPtr> EmbeddedKubeApi::Create(Kind kind, const std::string& json) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  const ObjectName& name = given.meta.name;
  MutexLock write_lock(write_mu_);
  if (Find(kind, name) != nullptr) return ObjectExists(kind, name);
  {
    MutexLock lock(mu_);
    if (TableOf(kind).objects.size() >= options_.max_objects_per_kind) {
      return ResourceExhausted(std::string(TraitsOf(kind).plural) + ": create: too many (limit " +
                               std::to_string(options_.max_objects_per_kind) + ")");
    }
  }
  if (given.meta.resource_version != 0) {
    return InvalidArgument("metadata.resourceVersion: must be absent at creation");
  }
  KVF_ASSIGN_OR_RETURN(const std::string admitted, Admit(kind, json, nullptr));
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(admitted));
  Json& metadata = root["metadata"];
  KeepSystemFields(Json::object(), metadata);
  metadata["uid"] = MakeUid();
  metadata["creationTimestamp"] = FormatTime(options_.clock->UnixMicros());
  metadata["generation"] = 1;
  if (TraitsOf(kind).has_status && !TraitsOf(kind).status_at_creation) root.erase("status");
  KVF_ASSIGN_OR_RETURN(Object object, Reparse(kind, root));
  return Commit(std::move(object), EventType::kAdded);
}

Result<ObjectPtr> EmbeddedKubeApi::Update(Kind kind, const std::string& json) {
  return Replace(kind, json, false);
}

Result<ObjectPtr> EmbeddedKubeApi::UpdateStatus(Kind kind, const std::string& json) {
  if (!TraitsOf(kind).has_status) {
    return Unimplemented(std::string(TraitsOf(kind).name) + ": has no status of its own");
  }
  return Replace(kind, json, true);
}

Result<ObjectPtr> EmbeddedKubeApi::Replace(Kind kind, const std::string& json, bool status_only) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  const KindTraits& traits = TraitsOf(kind);
  const ObjectName& name = given.meta.name;
  MutexLock write_lock(write_mu_);
  const ObjectPtr old = Find(kind, name);
  if (old == nullptr) return ObjectNotFound(kind, name);
  if (given.meta.resource_version == 0 && !traits.unconditional_update) {
    return Invalid(kind, name, {{"metadata.resourceVersion", "must be given for an update"}});
  }
  if (given.meta.resource_version != 0 &&
      given.meta.resource_version != old->meta.resource_version) {
    return Conflict(kind, name, "it has changed since it was read");
  }
  if (!given.meta.uid.empty() && given.meta.uid != old->meta.uid) {
    return Conflict(kind, name, "it is another object of the same name");
  }
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(json));
  KVF_ASSIGN_OR_RETURN(Json old_root, ParseJson(old->json));
  if (status_only) {
    Json status = root.contains("status") ? std::move(root["status"]) : Json(nullptr);
    root = old_root;
    root["status"] = std::move(status);
  } else if (traits.has_status) {
    root.erase("status");
    if (old_root.contains("status")) root["status"] = old_root["status"];
  }
  if (root.contains("status") && root["status"].is_null()) root.erase("status");
  KeepSystemFields(old_root["metadata"], root["metadata"]);
  KVF_ASSIGN_OR_RETURN(const std::string admitted, Admit(kind, DumpJson(root), &old->json));
  KVF_ASSIGN_OR_RETURN(root, ParseJson(admitted));
  if (root == old_root) return old;
  if (!SameSpec(root, old_root)) root["metadata"]["generation"] = old->meta.generation + 1;
  KVF_ASSIGN_OR_RETURN(Object object, Reparse(kind, root));
  return Commit(std::move(object), EventType::kModified);
}

Status EmbeddedKubeApi::Delete(Kind kind, const ObjectName& name,
                               const Preconditions& preconditions) {
  MutexLock write_lock(write_mu_);
  const ObjectPtr object = Find(kind, name);
  if (object == nullptr) return ObjectNotFound(kind, name);
  if (!preconditions.uid.empty() && preconditions.uid != object->meta.uid) {
    return Conflict(kind, name, "it is another object of the same name");
  }
  if (preconditions.resource_version != 0 &&
      preconditions.resource_version != object->meta.resource_version) {
    return Conflict(kind, name, "it has changed since it was read");
  }
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
  auto last = std::make_shared<Object>(*object);
  last->meta.resource_version = version;
  Publish({EventType::kDeleted, std::move(last)});
  return outcome;
}

void EmbeddedKubeApi::Publish(WatchEvent event) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    const ObjectPtr& object = event.object;
    Table& table = TableOf(object->kind);
    if (event.type == EventType::kDeleted) {
      table.objects.erase(object->meta.name);
    } else {
      table.objects[object->meta.name] = object;
    }
    current_ = object->meta.resource_version;
    ++table.writes;
    watchers.assign(table.watchers.begin(), table.watchers.end());
    table.ring.Push(std::move(event));
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

Result<ObjectPtr> EmbeddedKubeApi::Apply(Kind kind, const std::string& /*json*/,
                                         const ApplyOptions& /*options*/) {
  return Unimplemented(std::string(TraitsOf(kind).name) + ": apply: not served yet");
}

Result<ObjectPtr> EmbeddedKubeApi::Patch(Kind kind, const ObjectName& /*name*/, PatchType /*type*/,
                                         const std::string& /*patch*/, bool /*status*/) {
  return Unimplemented(std::string(TraitsOf(kind).name) + ": patch: not served yet");
}

namespace {
Status CheckScope(const Scope& scope) {
  if (scope.labels.empty() && scope.fields.empty()) return Status::Ok();
  return Unimplemented("selectors: not served by the embedded API yet");
}
}  // namespace

Result<std::unique_ptr<ListStream>> EmbeddedKubeApi::StartList(
    Kind kind, const Scope& scope, std::optional<std::uint64_t> /*not_older_than*/,
    std::function<void()> on_ready) {
  KVF_RETURN_IF_ERROR(CheckScope(scope));
  KVF_ASSIGN_OR_RETURN(ObjectList list, List(kind, scope.ns));
  if (on_ready) on_ready();
  return std::unique_ptr<ListStream>(new Snapshot(std::move(list)));
}

Result<std::unique_ptr<WatchStream>> EmbeddedKubeApi::Watch(Kind kind, const Scope& scope,
                                                            const WatchFrom& from,
                                                            std::function<void()> on_ready) {
  KVF_RETURN_IF_ERROR(CheckScope(scope));
  if (from.initial_events) return Unimplemented("watch: initial events: list instead");
  KVF_RETURN_IF_ERROR(Poll(kind, scope.ns, from.resource_version).status());
  auto watcher = std::make_shared<Watcher>(std::move(on_ready));
  auto stream = std::make_unique<Stream>(*this, kind, scope.ns, from.resource_version);
  stream->set_watcher(watcher);
  {
    MutexLock lock(mu_);
    TableOf(kind).watchers.insert(watcher);
  }
  // What happened before this line is found by the first Poll.
  watcher->Notify();
  return std::unique_ptr<WatchStream>(std::move(stream));
}

Result<WatchBatch> EmbeddedKubeApi::Poll(Kind kind, const std::string& ns,
                                         std::uint64_t version) const {
  MutexLock lock(mu_);
  return TableOf(kind).ring.After(version, ns, current_);
}

void EmbeddedKubeApi::Forget(Kind kind, const std::shared_ptr<Watcher>& watcher) {
  MutexLock lock(mu_);
  TableOf(kind).watchers.erase(watcher);
}

}  // namespace kvfabric::kube
