#include "placement/directory_load.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/block_key.h"
#include "placement/slot.h"

namespace kvfabric {
namespace {

SlotIndex SlotOfBlockId(std::uint64_t id, std::uint32_t slot_count) {
  std::array<std::byte, 8> key{};
  for (std::size_t i = key.size(); i > 0; --i, id >>= 8U) {
    key[i - 1] = static_cast<std::byte>(id & 0xFFU);
  }
  return SlotOf(key, slot_count);
}

bool MayOwn(const Member& member) {
  return member.state != MemberState::kLost && member.state != MemberState::kDraining;
}

}  // namespace

DirectoryLoad::DirectoryLoad(const ShardMap& map)
    : map_(map), entries_(map.members.size(), 0), lookups_(map.members.size(), 0) {}

void DirectoryLoad::AddChain(std::span<const std::uint64_t> block_ids) {
  MemberIndex owner = kNoOwner;
  for (std::size_t depth = 0; depth < block_ids.size(); ++depth) {
    if (RunStart(static_cast<std::uint32_t>(depth)) == depth) {
      owner = map_.Owners(SlotOfBlockId(block_ids[depth], map_.slot_count))[0];
    }
    const bool first_time = seen_.insert(block_ids[depth]).second;
    if (owner == kNoOwner) continue;
    ++lookups_[owner];
    if (first_time) ++entries_[owner];
  }
}

double DirectoryLoad::MaxOverMean(const std::vector<std::uint64_t>& counts) const {
  std::uint64_t largest = 0;
  std::uint64_t total = 0;
  std::uint64_t owning = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    largest = std::max(largest, counts[i]);
    total += counts[i];
    if (MayOwn(map_.members[i])) ++owning;
  }
  if (total == 0) return 0;
  return static_cast<double>(largest) * static_cast<double>(owning) / static_cast<double>(total);
}

}  // namespace kvfabric
