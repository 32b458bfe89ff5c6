#pragma once

// RequestKeys: what a request's keys are called inside the fabric: KeyId per lane and slot per key.
// Made once where a request enters; a value, any thread.

#include <cstdint>
#include <span>
#include <vector>

#include "agent/block/block_header.h"
#include "common/status.h"
#include "placement/slot.h"

namespace kvfabric {

// Limits of one request; beyond them INVALID_ARGUMENT.
inline constexpr std::size_t kMaxRequestKeys = 16'384;
inline constexpr std::size_t kMaxRequestLanes = 64;
inline constexpr std::size_t kMaxRequestIds = 65'536;  // keys x lanes

class RequestKeys {
 public:
  RequestKeys() = default;
  // Checks limits, key lengths and that run tag and (with `need_parent`) parent are given.
  static Result<RequestKeys> Resolve(const Namespace& ns, std::span<const Lane> lanes,
                                     const KeyRange& range, std::uint32_t slot_count,
                                     bool need_parent);

  std::size_t key_count() const { return slots_.size(); }
  std::size_t lane_count() const { return lane_count_; }
  const KeyId& id(std::size_t lane, std::size_t key) const {
    return ids_[lane * key_count() + key];
  }
  std::span<const KeyId> ids_of_lane(std::size_t lane) const {
    return {ids_.data() + lane * key_count(), key_count()};
  }
  SlotIndex slot(std::size_t key) const { return slots_[key]; }
  // Of the block before the first key, per lane; none when there is none.
  const KeyId& parent_of_first(std::size_t lane) const { return parents_[lane]; }
  // Id of the block before `key` in its lane; none for Single and at depth 0.
  KeyId parent(std::size_t lane, std::size_t key) const;

 private:
  bool chain_ = true;
  std::size_t lane_count_ = 0;
  std::vector<KeyId> ids_;  // lane-major
  std::vector<SlotIndex> slots_;
  std::vector<KeyId> parents_;
};

}  // namespace kvfabric
