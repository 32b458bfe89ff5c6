#include "agent/cluster/request_keys.h"

#include <string>

#include "common/identity.h"

namespace kvfabric {

namespace {

Status CheckLimits(const Namespace& ns, std::span<const Lane> lanes, const KeyRange& range) {
  if (lanes.empty() || lanes.size() > kMaxRequestLanes) {
    return InvalidArgument("request: lanes: " + std::to_string(lanes.size()) + " given (1.." +
                           std::to_string(kMaxRequestLanes) + ")");
  }
  if (range.keys.size() > kMaxRequestKeys || range.keys.size() * lanes.size() > kMaxRequestIds) {
    return InvalidArgument("request: keys: " + std::to_string(range.keys.size()) + " in " +
                           std::to_string(lanes.size()) + " lanes (limits " +
                           std::to_string(kMaxRequestKeys) + " keys, " +
                           std::to_string(kMaxRequestIds) + " keys x lanes): split the request");
  }
  for (const std::string& key : range.keys) KVF_RETURN_IF_ERROR(ValidateKey(key));
  if (ns.kind == NamespaceKind::kSingle) return Status::Ok();
  if (range.first > UINT32_MAX - kMaxRequestKeys) {
    return InvalidArgument("request: first depth: too large");
  }
  if (!range.run_tag.empty()) KVF_RETURN_IF_ERROR(ValidateKey(range.run_tag));
  if (!range.parent_key.empty()) KVF_RETURN_IF_ERROR(ValidateKey(range.parent_key));
  if (!range.keys.empty() && range.run_tag.empty() && RunStart(range.first) != range.first) {
    return InvalidArgument("request: run tag: missing for first depth " +
                           std::to_string(range.first) + "; give the key at depth " +
                           std::to_string(RunStart(range.first)));
  }
  return Status::Ok();
}

std::vector<SlotIndex> ChainSlots(const KeyRange& range, std::uint32_t slot_count) {
  std::vector<SlotIndex> slots;
  slots.reserve(range.keys.size());
  for (std::size_t at = 0; at < range.keys.size(); ++at) {
    const auto depth = range.first + static_cast<std::uint32_t>(at);
    const std::uint32_t start = RunStart(depth);
    if (!slots.empty() && start != depth) {
      slots.push_back(slots.back());
      continue;
    }
    const std::string& tag = start == depth ? range.keys[at] : range.run_tag;
    slots.push_back(SlotOf(AsBytes(tag), slot_count));
  }
  return slots;
}

}  // namespace

Result<RequestKeys> RequestKeys::Resolve(const Namespace& ns, std::span<const Lane> lanes,
                                         const KeyRange& range, std::uint32_t slot_count,
                                         bool need_parent) {
  KVF_RETURN_IF_ERROR(CheckLimits(ns, lanes, range));
  RequestKeys keys;
  keys.chain_ = ns.kind == NamespaceKind::kChain;
  keys.lane_count_ = lanes.size();
  keys.parents_.resize(lanes.size());
  if (keys.chain_ && need_parent && range.first > 0) {
    if (range.parent_key.empty()) {
      return InvalidArgument("request: parent key: missing for first depth " +
                             std::to_string(range.first));
    }
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      keys.parents_[lane] = MakeKeyId(ns.digest, lanes[lane], range.parent_key);
    }
  }
  keys.ids_.reserve(lanes.size() * range.keys.size());
  for (const Lane lane : lanes) {
    for (const std::string& key : range.keys) keys.ids_.push_back(MakeKeyId(ns.digest, lane, key));
  }
  if (keys.chain_) {
    keys.slots_ = ChainSlots(range, slot_count);
  } else {
    keys.slots_.reserve(range.keys.size());
    for (const std::string& key : range.keys) keys.slots_.push_back(SlotOfSingle(key, slot_count));
  }
  return keys;
}

KeyId RequestKeys::parent(std::size_t lane, std::size_t key) const {
  if (!chain_) return KeyId{};
  return key == 0 ? parents_[lane] : id(lane, key - 1);
}

}  // namespace kvfabric
