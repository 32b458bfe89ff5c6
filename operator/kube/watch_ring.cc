#include "operator/kube/watch_ring.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

std::uint64_t VersionOf(const WatchEvent& event) { return event.object->meta.resource_version; }

// `event` as one who selects sees it; nullopt when it is none of their business.
Result<std::optional<WatchEvent>> Seen(const WatchEvent& event, const ObjectPtr& previous,
                                       const ObjectSelector& selector) {
  const bool now = selector.Matches(*event.object);
  if (event.type != EventType::kModified || previous == nullptr) {
    return now ? std::optional<WatchEvent>(event) : std::nullopt;
  }
  const bool before = selector.Matches(*previous);
  if (now) {
    return std::optional<WatchEvent>(
        {before ? EventType::kModified : EventType::kAdded, event.object});
  }
  if (!before) return std::optional<WatchEvent>();
  KVF_ASSIGN_OR_RETURN(Object left, WithVersion(*previous, VersionOf(event)));
  return std::optional<WatchEvent>(
      {EventType::kDeleted, std::make_shared<const Object>(std::move(left))});
}

}  // namespace

Result<Object> WithVersion(const Object& object, std::uint64_t version) {
  KVF_ASSIGN_OR_RETURN(Json root, ParseJson(object.json));
  root["metadata"]["resourceVersion"] = std::to_string(version);
  return ParseObject(object.kind, DumpJson(root));
}

std::size_t WatchRing::Entry::bytes() const {
  return event.object->json.size() + (previous == nullptr ? 0 : previous->json.size());
}

void WatchRing::Push(WatchEvent event, ObjectPtr previous) {
  entries_.push_back({std::move(event), std::move(previous)});
  bytes_ += entries_.back().bytes();
  while (entries_.size() > limits_.events || (bytes_ > limits_.bytes && entries_.size() > 1)) {
    forgotten_ = VersionOf(entries_.front().event);
    bytes_ -= entries_.front().bytes();
    entries_.pop_front();
  }
}

Result<WatchBatch> WatchRing::After(std::uint64_t version, const ObjectSelector& selector,
                                    std::uint64_t current) const {
  if (version < forgotten_) {
    return Status(StatusCode::kOutOfRange, "watch: resourceVersion " + std::to_string(version) +
                                               " is too old (oldest " + std::to_string(forgotten_) +
                                               "); list again");
  }
  WatchBatch batch;
  batch.resource_version = std::max(version, current);
  const auto first = std::upper_bound(
      entries_.begin(), entries_.end(), version,
      [](std::uint64_t v, const Entry& entry) { return v < VersionOf(entry.event); });
  for (auto it = first; it != entries_.end(); ++it) {
    if (batch.events.size() == limits_.batch) {
      batch.resource_version = VersionOf(batch.events.back());
      break;
    }
    KVF_ASSIGN_OR_RETURN(std::optional<WatchEvent> seen, Seen(it->event, it->previous, selector));
    if (seen.has_value()) batch.events.push_back(*std::move(seen));
  }
  return batch;
}

}  // namespace kvfabric::kube
