#pragma once

// EdgeCursors: for each pair of members, how far a list of the first has been looked through for
// an entry that suits the second. Entries only ever turn unsuitable, so what was passed over once
// need not be looked at again: that keeps long plans linear in the table. Owned by one search; one
// thread.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/shard_map.h"

namespace kvfabric {

class EdgeCursors {
 public:
  explicit EdgeCursors(std::size_t members) : cursors_(members) {}

  // Position of the next entry of `from`'s list, which has `size` entries, that suits `to`; `size`
  // if there is none. `suits` takes a position.
  template <typename Suits>
  std::size_t Next(MemberIndex from, MemberIndex to, std::size_t size, const Suits& suits) {
    std::vector<std::uint32_t>& of_member = cursors_[from];
    if (of_member.empty()) of_member.resize(cursors_.size(), 0);
    std::uint32_t& cursor = of_member[to];
    while (cursor < size && !suits(cursor)) ++cursor;
    return cursor;
  }

 private:
  std::vector<std::vector<std::uint32_t>> cursors_;  // by from (empty until used), by to
};

}  // namespace kvfabric
