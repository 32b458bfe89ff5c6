#pragma once

// Informer<T>: all objects of one kind, decoded into T, as immutable snapshots, with handlers that
// are told what changed. The JSON is not kept: T holds what its users need and no more.
//
// On the control loop's thread, but snapshots may be handed anywhere. An object that cannot be
// decoded is counted and left out. The same name under a new uid is a deletion and an addition.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "operator/kube/reflector.h"

namespace kvfabric::kube {

template <typename T>
class Informer final : private ReflectorSink {
 public:
  using Item = std::shared_ptr<const T>;
  using Snapshot = std::map<ObjectName, Item>;
  using Decoder = std::function<Result<T>(const Object&)>;
  // Before and after; one of them may be null, never both.
  using Handler = std::function<void(const ObjectName&, const Item& before, const Item& after)>;

  Informer(KubeApi& api, const Clock& clock, Reflector::Options options, Decoder decode)
      : kind_(options.kind),
        decode_(std::move(decode)),
        reflector_(api, clock, std::move(options), *this) {}
  Informer(const Informer&) = delete;  // the reflector points to this
  Informer& operator=(const Informer&) = delete;

  // Before the first Step.
  void AddHandler(Handler handler) { handlers_.push_back(std::move(handler)); }
  void Step() { reflector_.Step(); }
  std::optional<Clock::TimePoint> NextDue() const { return reflector_.NextDue(); }
  bool synced() const { return reflector_.synced(); }
  std::uint64_t resource_version() const { return reflector_.resource_version(); }
  std::uint64_t lists() const { return reflector_.lists(); }
  std::uint64_t skipped() const { return skipped_; }

  std::shared_ptr<const Snapshot> snapshot() const { return snapshot_; }
  Item Find(const ObjectName& name) const {
    const auto it = snapshot_->find(name);
    return it == snapshot_->end() ? nullptr : it->second;
  }

 private:
  struct Change {
    ObjectName name;
    Item before;
    Item after;
  };

  void Replace(const ObjectList& list) override {
    auto next = std::make_shared<Snapshot>();
    std::map<ObjectName, std::string> uids;
    for (const ObjectPtr& object : list.items) {
      if (Item item = Decode(*object)) {
        next->emplace(object->meta.name, std::move(item));
        uids.emplace(object->meta.name, object->meta.uid);
      }
    }
    std::vector<Change> changes;
    for (const auto& [name, item] : *snapshot_) {
      if (next->count(name) == 0) changes.push_back({name, item, nullptr});
    }
    for (const auto& [name, item] : *next) {
      AddChanges(name, item, uids_.count(name) != 0 && uids_[name] != uids[name], &changes);
    }
    uids_ = std::move(uids);
    Publish(std::move(next), changes);
  }

  void Apply(const WatchEvent& event) override {
    const Object& object = *event.object;
    const ObjectName& name = object.meta.name;
    auto next = std::make_shared<Snapshot>(*snapshot_);
    std::vector<Change> changes;
    Item item = event.type == EventType::kDeleted ? nullptr : Decode(object);
    if (item == nullptr) {
      if (const Item before = Find(name)) changes.push_back({name, before, nullptr});
      next->erase(name);
      uids_.erase(name);
    } else {
      AddChanges(name, item, uids_.count(name) != 0 && uids_[name] != object.meta.uid, &changes);
      (*next)[name] = std::move(item);
      uids_[name] = object.meta.uid;
    }
    Publish(std::move(next), changes);
  }

  void AddChanges(const ObjectName& name, const Item& item, bool other_object,
                  std::vector<Change>* changes) const {
    Item before = Find(name);
    if (before != nullptr && other_object) {
      changes->push_back({name, before, nullptr});
      before = nullptr;
    }
    changes->push_back({name, before, item});
  }

  // Handlers run with the new snapshot in place.
  void Publish(std::shared_ptr<const Snapshot> next, const std::vector<Change>& changes) {
    snapshot_ = std::move(next);
    for (const Change& change : changes) {
      for (const Handler& handler : handlers_) handler(change.name, change.before, change.after);
    }
  }

  Item Decode(const Object& object) {
    Result<T> decoded = decode_(object);
    if (decoded.ok()) return std::make_shared<const T>(std::move(decoded).value());
    ++skipped_;
    LogWarn("object left out", {{"kind", TraitsOf(kind_).name},
                                {"object", object.meta.name.ToString()},
                                {"reason", decoded.status().message()}});
    return nullptr;
  }

  const Kind kind_;
  const Decoder decode_;
  std::vector<Handler> handlers_;
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<const Snapshot>();
  std::map<ObjectName, std::string> uids_;
  std::uint64_t skipped_ = 0;
  Reflector reflector_;
};

}  // namespace kvfabric::kube
