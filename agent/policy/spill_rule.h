#pragma once

// The spill rule: to which peer a node hands a leaf it must evict.
// Pure functions; any thread. All times are idle times (now less last touch), which mean the same
// on every node: the colder a leaf, the longer its idle time.

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>

namespace kvfabric {

using IdleTime = std::chrono::microseconds;

// Idle time of the coldest leaf of a peer below its watermark: it takes a block and evicts none.
inline constexpr IdleTime kColdestOfAll = IdleTime::max();

// A tenth of the sender's own residence time: a smaller gain is not worth the move.
IdleTime SpillMargin(IdleTime own_coldest);

// The peer whose coldest leaf is the coldest, if that is colder than the victim by more than the
// margin. Ties go to the first. Unset entries (down, silent, all pinned) get nothing. The caller
// has asked Victim::spillable().
std::optional<std::size_t> ChooseSpillPeer(IdleTime victim, IdleTime own_coldest,
                                           std::span<const std::optional<IdleTime>> peers_coldest);

}  // namespace kvfabric
