#pragma once

// EmbeddedKubeApi: the API server's rules for the kinds we use, in this process, over a directory
// of YAML: list, watch, resourceVersion guards, status apart from spec, generation, uid, leases as
// ordinary objects, dependents that go with their owner. `kvctl up` runs on it.
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
#include "operator/kube/object_store.h"
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
};

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
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override EXCLUDES(write_mu_, mu_);
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override EXCLUDES(write_mu_, mu_);
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override
      EXCLUDES(write_mu_, mu_);
  Result<ObjectPtr> Apply(Kind kind, const std::string& json, const ApplyOptions& options) override
      EXCLUDES(write_mu_, mu_);
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override EXCLUDES(write_mu_, mu_);
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override
      EXCLUDES(write_mu_, mu_);
  // Always as of now.
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
  struct Table {
    explicit Table(WatchRing r) : ring(std::move(r)) {}
    std::map<ObjectName, ObjectPtr> objects;
    WatchRing ring;
    std::set<std::shared_ptr<Watcher>> watchers;
    std::uint64_t writes = 0;
  };

  EmbeddedKubeApi(Options options, std::unique_ptr<ObjectStore> store);
  Result<ObjectPtr> Replace(Kind kind, const std::string& json, bool status_only)
      EXCLUDES(write_mu_, mu_);
  // Numbers the object, writes it, then shows it to readers and watchers.
  Result<ObjectPtr> Commit(Object object, EventType type) REQUIRES(write_mu_) EXCLUDES(mu_);
  Status Remove(const ObjectPtr& object) REQUIRES(write_mu_) EXCLUDES(mu_);
  // Deletes objects all of whose owners are gone.
  void CollectOrphans() REQUIRES(write_mu_) EXCLUDES(mu_);
  void Publish(WatchEvent event) REQUIRES(write_mu_) EXCLUDES(mu_);
  ObjectPtr Find(Kind kind, const ObjectName& name) const EXCLUDES(mu_);
  Result<std::string> Admit(Kind kind, const std::string& json, const std::string* old) const;
  Result<WatchBatch> Poll(Kind kind, const std::string& ns, std::uint64_t version) const
      EXCLUDES(mu_);
  void Forget(Kind kind, const std::shared_ptr<Watcher>& watcher) EXCLUDES(mu_);
  Table& TableOf(Kind kind) REQUIRES(mu_) { return *tables_[static_cast<std::size_t>(kind)]; }
  const Table& TableOf(Kind kind) const REQUIRES(mu_) {
    return *tables_[static_cast<std::size_t>(kind)];
  }

  const Options options_;

  Mutex write_mu_;
  std::unique_ptr<ObjectStore> store_ GUARDED_BY(write_mu_);

  mutable Mutex mu_;
  std::array<std::unique_ptr<Table>, kKindCount> tables_ GUARDED_BY(mu_);
  std::uint64_t current_ GUARDED_BY(mu_) = 0;  // version of the last committed write
};

}  // namespace kvfabric::kube
