#pragma once

// The slot of a key: what decides which nodes know about a block.
//
// slot = CRC16 (XMODEM: polynomial 0x1021, start 0) of the bytes, modulo 16384, exactly as Redis
// Cluster computes it. A pool may have 16384 x 2^k slots, k = 0..3; then the low 14 bits are still
// the Redis slot and the k bits above it are the top k bits of XXH3-64 (seed 0) of the same bytes,
// so that growing k splits each Redis slot evenly. Every client, agent and operator must agree on
// this to the bit: it is pinned by known answers in tests/placement/slot_test.cc.
//
// Pure functions; any thread.

#include <cstdint>
#include <string_view>

#include "common/bytes.h"

namespace kvfabric {

inline constexpr std::uint32_t kRedisSlots = 16384;
inline constexpr std::uint32_t kMaxSlotCount = kRedisSlots << 3U;

using SlotIndex = std::uint32_t;

// True for 16384, 32768, 65536 and 131072: the values a pool's spec may name.
constexpr bool IsValidSlotCount(std::uint32_t slot_count) {
  return slot_count >= kRedisSlots && slot_count <= kMaxSlotCount &&
         (slot_count & (slot_count - 1)) == 0;
}

std::uint16_t Crc16(ByteSpan bytes);

// Slot of a chain's run: all bytes of the run tag count, braces included.
// `slot_count` must be valid.
SlotIndex SlotOf(ByteSpan run_tag, std::uint32_t slot_count);

// Slot of an independent key: if it has a `{`, and a later `}` with at least one byte between,
// only the bytes between the first such pair count (Redis hash tags).
SlotIndex SlotOfSingle(std::string_view key, std::uint32_t slot_count);

}  // namespace kvfabric
