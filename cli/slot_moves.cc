#include "cli/slot_moves.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvfabric::cli {
namespace {

// Member indices of both maps in one numbering, by node name.
std::vector<std::uint32_t> Numbers(const ShardMap& map,
                                   std::map<std::string, std::uint32_t>& by_name) {
  std::vector<std::uint32_t> numbers;
  for (const Member& member : map.members) {
    numbers.push_back(by_name.emplace(member.node_name, static_cast<std::uint32_t>(by_name.size()))
                          .first->second);
  }
  return numbers;
}

std::vector<std::uint32_t> NodesOf(const ShardMap& map, const std::vector<std::uint32_t>& numbers,
                                   SlotIndex slot) {
  std::vector<std::uint32_t> nodes;
  for (const MemberIndex member : map.ByteOwners(slot)) {
    if (member != kNoOwner) nodes.push_back(numbers[member]);
  }
  return nodes;
}

std::set<std::string> OwningNodes(const ShardMap& map) {
  std::vector<bool> owns(map.members.size(), false);
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    for (const MemberIndex member : map.ByteOwners(slot)) {
      if (member != kNoOwner) owns[member] = true;
    }
  }
  std::set<std::string> nodes;
  for (std::size_t i = 0; i < owns.size(); ++i) {
    if (owns[i]) nodes.insert(map.members[i].node_name);
  }
  return nodes;
}

}  // namespace

SlotMoves CountSlotMoves(const ShardMap& before, const ShardMap& after) {
  std::map<std::string, std::uint32_t> by_name;
  const std::vector<std::uint32_t> old_numbers = Numbers(before, by_name);
  const std::vector<std::uint32_t> new_numbers = Numbers(after, by_name);
  std::vector<std::int64_t> gained(by_name.size(), 0);
  SlotMoves moves;
  const SlotIndex slots = std::min(before.slot_count, after.slot_count);
  for (SlotIndex slot = 0; slot < slots; ++slot) {
    const auto old_nodes = NodesOf(before, old_numbers, slot);
    for (const std::uint32_t node : old_nodes) --gained[node];
    for (const std::uint32_t node : NodesOf(after, new_numbers, slot)) {
      ++gained[node];
      if (std::find(old_nodes.begin(), old_nodes.end(), node) == old_nodes.end()) ++moves.moved;
    }
  }
  for (const std::int64_t more : gained) {
    if (more > 0) moves.bound += static_cast<std::uint64_t>(more);
  }
  return moves;
}

SlotMoves CountSlotMoves(const std::vector<ShardMap>& history) {
  SlotMoves sum;
  for (std::size_t first = 0; first + 1 < history.size();) {
    // The change from `first` on ends where the next set of owners begins.
    const std::set<std::string> owners = OwningNodes(history[first + 1]);
    std::size_t last = first + 1;
    while (last + 1 < history.size() && OwningNodes(history[last + 1]) == owners) ++last;
    for (std::size_t i = first; i < last; ++i)
      sum.moved += CountSlotMoves(history[i], history[i + 1]).moved;
    sum.bound += CountSlotMoves(history[first], history[last]).bound;
    first = last;
  }
  return sum;
}

}  // namespace kvfabric::cli
