#pragma once

// ReadRing remembers the last 64 Ki blocks that this agent read from peers: one that is read again
// is worth a local copy. Owned by PoolNode; any thread. About 3 MiB when full.

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "common/block_key.h"
#include "common/mutex.h"

namespace kvfabric {

class ReadRing {
 public:
  explicit ReadRing(std::size_t capacity = std::size_t{1} << 16U) : capacity_(capacity) {}

  // True when `id` was read before; it is remembered either way.
  bool NoteRead(const KeyId& id) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto [known, fresh] = reads_.try_emplace(id, 0U);
    ++known->second;
    const bool before = !fresh;
    if (order_.size() < capacity_) {
      order_.push_back(id);
      return before;
    }
    const KeyId oldest = order_[next_];
    order_[next_] = id;
    next_ = (next_ + 1) % capacity_;
    const auto forgotten = reads_.find(oldest);
    if (--forgotten->second == 0) reads_.erase(forgotten);
    return before;
  }

  bool Seen(const KeyId& id) const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return reads_.contains(id);
  }

 private:
  const std::size_t capacity_;
  mutable Mutex mu_;
  std::vector<KeyId> order_ GUARDED_BY(mu_);
  std::size_t next_ GUARDED_BY(mu_) = 0;
  std::unordered_map<KeyId, std::uint32_t, KeyIdHash> reads_ GUARDED_BY(mu_);  // times in order_
};

}  // namespace kvfabric
