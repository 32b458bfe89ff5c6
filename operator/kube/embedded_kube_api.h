#pragma once

// EmbeddedKubeApi: the API server's rules for the kinds we use, in this process, over a directory
// of YAML: list, watch, selectors, resourceVersion guards, status apart from spec, generation, uid,
// patches, server-side apply with managed fields, leases as ordinary objects, dependents that go
// with their owner. `kvctl up` runs on it.
//
// Owned by main. Any thread may call. Writers run one at a time, on the caller's thread, and wait
// for the disk; readers never wait for it. A write that answered OK survives kill -9 and a power
// cut; one that failed left the old object, or the new one where it says so.
// Lock order: write_mu_ before mu_ before a watcher's own lock.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/merge_schema.h"
#include "operator/kube/object_store.h"
#include "operator/kube/selector.h"
#include "operator/kube/watch_ring.h"

namespace kvfabric::kube {

// What the API server does with a CRD's schema before it stores an object: fills in defaults,
// refuses faults. Implemented by operator/specs. Any thread.
class Admission {
 public:
  virtual ~Admission() = default;
  // The JSON to store. `old_json` is null at creation. Invalid lists every fault.
  virtual Result<std::string> Admit(Kind kind, const std::string& json,
                                    const std::string* old_json) const = 0;
  // The lists of `kind` that are not atomic, as its schema says.
  virtual std::vector<ListRule> ListRules(Kind kind) const = 0;
};

// What a request over HTTP says besides the object.
struct WriteOptions {
  std::string field_manager = "kvfabric-operator";  // who owns what changes
  bool dry_run = false;                             // answer what would be stored; store nothing
};

// The patches of PatchType, and what kubectl sends for built-in kinds.
enum class PatchFormat : std::uint8_t { kMerge, kJson, kStrategic };

class EmbeddedKubeApi final : public KubeApi {
 public:
  struct Options {
    std::filesystem::path directory;
    const Clock* clock = &Clock::System();  // borrowed; creation timestamps
    const Admission* admission = nullptr;   // borrowed; null = takes anything
    WatchRing::Limits ring{};
    std::size_t max_objects_per_kind = 16'384;
    StoreFault fault;  // tests
    bool sync = true;  // see ObjectStore::Options
  };

  static Result<std::unique_ptr<EmbeddedKubeApi>> Open(Options options);
  ~EmbeddedKubeApi() override;
  EmbeddedKubeApi(const EmbeddedKubeApi&) = delete;  // owns the directory
  EmbeddedKubeApi& operator=(const EmbeddedKubeApi&) = delete;

  Result<ObjectList> List(Kind kind, const std::string& ns) override EXCLUDES(mu_);
  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override EXCLUDES(mu_);
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override {
    return Create(kind, json, WriteOptions());
  }
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override {
    return Replace(kind, json, false, WriteOptions());
  }
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override {
    return Replace(kind, json, true, WriteOptions());
  }
  Result<ObjectPtr> Apply(Kind kind, const std::string& json,
                          const ApplyOptions& options) override {
    return Apply(kind, json, options, false);
  }
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override {
    const auto format = type == PatchType::kJson ? PatchFormat::kJson : PatchFormat::kMerge;
    return Patch(kind, name, {format, patch, status}, WriteOptions());
  }
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override {
    return Delete(kind, name, preconditions, false);
  }

  // The same with what only requests over HTTP say.
  Result<ObjectPtr> Create(Kind kind, const std::string& json, const WriteOptions& options)
      EXCLUDES(write_mu_, mu_);
  // Update, or UpdateStatus.
  Result<ObjectPtr> Replace(Kind kind, const std::string& json, bool status,
                            const WriteOptions& options) EXCLUDES(write_mu_, mu_);
  Result<ObjectPtr> Apply(Kind kind, const std::string& json, const ApplyOptions& options,
                          bool dry_run) EXCLUDES(write_mu_, mu_);
  struct PatchRequest {
    PatchFormat format = PatchFormat::kMerge;
    std::string text;
    bool status = false;
  };
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, const PatchRequest& patch,
                          const WriteOptions& options) EXCLUDES(write_mu_, mu_);
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions, bool dry_run)
      EXCLUDES(write_mu_, mu_);

  // Always as of now; ResourceVersionTooLarge when that is older than asked for, as after the
  // directory was lost.
  Result<std::unique_ptr<ListStream>> StartList(Kind kind, const Scope& scope,
                                                std::optional<std::uint64_t> not_older_than,
                                                std::function<void()> on_ready) override
      EXCLUDES(mu_);
  Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const Scope& scope, const WatchFrom& from,
                                             std::function<void()> on_ready) override EXCLUDES(mu_);

  // Writes that reached the disk since Open, by kind: what "idle it writes nothing" is held to.
  std::uint64_t writes(Kind kind) const EXCLUDES(mu_);

 private:
  class Watcher;
  class Stream;
  class Snapshot;
  struct Write;
  struct Table {
    explicit Table(WatchRing r) : ring(std::move(r)) {}
    std::map<ObjectName, ObjectPtr> objects;
    WatchRing ring;
    std::set<std::shared_ptr<Watcher>> watchers;
    std::uint64_t writes = 0;
  };

  EmbeddedKubeApi(Options options, std::unique_ptr<ObjectStore> store);
  // Whether `given`, which was read earlier, may be written over `old`.
  static Status CheckGuards(const Object& given, const Object& old);
  // The end of every write: admission, what the API owns, managed fields, generation; nothing is
  // stored when nothing changes.
  Result<ObjectPtr> Finish(Write write) REQUIRES(write_mu_) EXCLUDES(mu_);
  // A write of `root` over `old`: the status of one and the rest of the other.
  Result<ObjectPtr> Overwrite(const ObjectPtr& old, const std::string& json, bool status,
                              const WriteOptions& options) REQUIRES(write_mu_) EXCLUDES(mu_);
  Status CheckRoom(Kind kind) const EXCLUDES(mu_);
  // Numbers the object, writes it, then shows it to readers and watchers.
  Result<ObjectPtr> Commit(Object object, EventType type) REQUIRES(write_mu_) EXCLUDES(mu_);
  Status Remove(const ObjectPtr& object) REQUIRES(write_mu_) EXCLUDES(mu_);
  // Deletes objects all of whose owners are gone.
  void CollectOrphans() REQUIRES(write_mu_) EXCLUDES(mu_);
  void Publish(WatchEvent event) REQUIRES(write_mu_) EXCLUDES(mu_);
  ObjectPtr Find(Kind kind, const ObjectName& name) const EXCLUDES(mu_);
  Result<std::string> Admit(Kind kind, const std::string& json, const std::string* old) const;
  Result<WatchBatch> Poll(Kind kind, const ObjectSelector& selector, std::uint64_t version) const
      EXCLUDES(mu_);
  Result<ObjectList> Select(Kind kind, const ObjectSelector& selector,
                            std::optional<std::uint64_t> not_older_than) const EXCLUDES(mu_);
  const MergeNode& SchemaOf(Kind kind) const { return schemas_[static_cast<std::size_t>(kind)]; }
  void Forget(Kind kind, const std::shared_ptr<Watcher>& watcher) EXCLUDES(mu_);
  Table& TableOf(Kind kind) REQUIRES(mu_) { return *tables_[static_cast<std::size_t>(kind)]; }
  const Table& TableOf(Kind kind) const REQUIRES(mu_) {
    return *tables_[static_cast<std::size_t>(kind)];
  }

  const Options options_;
  const std::vector<MergeNode> schemas_;  // by kind

  Mutex write_mu_;
  std::unique_ptr<ObjectStore> store_ GUARDED_BY(write_mu_);

  mutable Mutex mu_;
  std::array<std::unique_ptr<Table>, kKindCount> tables_ GUARDED_BY(mu_);
  std::uint64_t current_ GUARDED_BY(mu_) = 0;  // version of the last committed write
};

}  // namespace kvfabric::kube
