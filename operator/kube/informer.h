#pragma once

// Informer<T>: all objects of one kind, decoded into T, as immutable snapshots, with handlers that
// are told what changed. The JSON is not kept: T holds what its users need and no more.
//
// On the control loop's thread, and so are its snapshots: one that is held stays as it is, the next
// change makes a copy. An object that cannot be decoded is counted and left out. The same name
// under a new uid is a deletion and an addition.

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
  const Reflector::Counters& counters() const { return reflector_.counters(); }
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

  struct Known {
    Item item;
    std::string uid;
  };

  void BeginCollect() override { collected_.clear(); }

  void Collect(const WatchEvent& event) override {
    const ObjectMeta& meta = event.object->meta;
    Item item = event.type == EventType::kDeleted ? nullptr : Decode(*event.object);
    if (item == nullptr) {
      collected_.erase(meta.name);
    } else {
      collected_[meta.name] = {std::move(item), meta.uid};
    }
  }

  void CommitCollect() override {
    auto next = std::make_shared<Snapshot>();
    std::map<ObjectName, std::string> uids;
    std::vector<Change> changes;
    for (const auto& [name, item] : *snapshot_) {
      if (collected_.count(name) == 0) changes.push_back({name, item, nullptr});
    }
    for (auto& [name, known] : collected_) {
      AddChanges(name, known.item, known.uid, &changes);
      next->emplace_hint(next->end(), name, std::move(known.item));
      uids.emplace_hint(uids.end(), name, std::move(known.uid));
    }
    collected_.clear();
    uids_ = std::move(uids);
    snapshot_ = std::move(next);
    Tell(changes);
  }

  void Apply(const WatchEvent& event) override {
    const ObjectMeta& meta = event.object->meta;
    std::vector<Change> changes;
    Item item = event.type == EventType::kDeleted ? nullptr : Decode(*event.object);
    // In place when nobody holds the snapshot: a copy an event would be a copy a heartbeat.
    if (snapshot_.use_count() > 1) snapshot_ = std::make_shared<Snapshot>(*snapshot_);
    if (item == nullptr) {
      if (const Item before = Find(meta.name)) changes.push_back({meta.name, before, nullptr});
      snapshot_->erase(meta.name);
      uids_.erase(meta.name);
    } else {
      AddChanges(meta.name, item, meta.uid, &changes);
      (*snapshot_)[meta.name] = std::move(item);
      uids_[meta.name] = meta.uid;
    }
    Tell(changes);
  }

  void AddChanges(const ObjectName& name, const Item& item, const std::string& uid,
                  std::vector<Change>* changes) const {
    Item before = Find(name);
    const auto known = uids_.find(name);
    if (before != nullptr && known != uids_.end() && known->second != uid) {
      changes->push_back({name, before, nullptr});
      before = nullptr;
    }
    changes->push_back({name, before, item});
  }

  // With the new snapshot in place.
  void Tell(const std::vector<Change>& changes) const {
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
  std::shared_ptr<Snapshot> snapshot_ = std::make_shared<Snapshot>();
  std::map<ObjectName, std::string> uids_;  // of the snapshot's objects
  std::map<ObjectName, Known> collected_;
  std::uint64_t skipped_ = 0;
  Reflector reflector_;
};

}  // namespace kvfabric::kube
