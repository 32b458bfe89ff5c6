#pragma once

// WatchRing holds the last events of one kind, bounded in number and bytes: who falls further
// behind than that gets Gone and lists again. Not synchronised; EmbeddedKubeApi's lock guards it.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "common/status.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/selector.h"

namespace kvfabric::kube {

class WatchRing {
 public:
  struct Limits {
    std::size_t events = 1024;
    std::size_t bytes = std::size_t{16} << 20U;
    std::size_t batch = 256;  // events a read returns at most
  };

  // Versions up to `start` are history nobody can watch from.
  WatchRing(Limits limits, std::uint64_t start) : limits_(limits), forgotten_(start) {}

  // `event.object` carries the version, higher than any before. `previous`: what a kModified
  // replaced, so that a watcher learns when an object enters or leaves its selector.
  void Push(WatchEvent event, ObjectPtr previous);
  // Events after `version` as one who selects sees them, at most a batch. `current` is the version
  // of the whole API: what the batch reports when it holds everything. Gone when events after
  // `version` were forgotten.
  Result<WatchBatch> After(std::uint64_t version, const ObjectSelector& selector,
                           std::uint64_t current) const;

 private:
  struct Entry {
    WatchEvent event;
    ObjectPtr previous;
    std::size_t bytes() const;
  };

  const Limits limits_;
  std::uint64_t forgotten_;  // every event with a higher version is in the ring
  std::size_t bytes_ = 0;
  std::deque<Entry> entries_;
};

// The same object under another resourceVersion.
Result<Object> WithVersion(const Object& object, std::uint64_t version);

}  // namespace kvfabric::kube
