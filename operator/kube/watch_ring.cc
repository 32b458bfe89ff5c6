#include "operator/kube/watch_ring.h"

#include <algorithm>
#include <utility>

namespace kvfabric::kube {
namespace {

std::uint64_t VersionOf(const WatchEvent& event) { return event.object->meta.resource_version; }

}  // namespace

void WatchRing::Push(WatchEvent event) {
  bytes_ += event.object->json.size();
  events_.push_back(std::move(event));
  while (events_.size() > limits_.events || (bytes_ > limits_.bytes && events_.size() > 1)) {
    forgotten_ = VersionOf(events_.front());
    bytes_ -= events_.front().object->json.size();
    events_.pop_front();
  }
}

Result<WatchBatch> WatchRing::After(std::uint64_t version, const std::string& ns,
                                    std::uint64_t current) const {
  if (version < forgotten_) {
    return Status(StatusCode::kOutOfRange, "watch: resourceVersion " + std::to_string(version) +
                                               " is too old (oldest " + std::to_string(forgotten_) +
                                               "); list again");
  }
  WatchBatch batch;
  batch.resource_version = std::max(version, current);
  const auto first = std::upper_bound(
      events_.begin(), events_.end(), version,
      [](std::uint64_t v, const WatchEvent& event) { return v < VersionOf(event); });
  for (auto it = first; it != events_.end(); ++it) {
    if (batch.events.size() == limits_.batch) {
      batch.resource_version = VersionOf(batch.events.back());
      break;
    }
    if (ns.empty() || it->object->meta.name.ns == ns) batch.events.push_back(*it);
  }
  return batch;
}

}  // namespace kvfabric::kube
