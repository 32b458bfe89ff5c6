#include "placement/slot.h"

#include <array>
#include <bit>

#include "common/check.h"
#include "common/checksum.h"

namespace kvfabric {
namespace {

constexpr std::array<std::uint16_t, 256> MakeCrc16Table() {
  std::array<std::uint16_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte << 8U;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 0x8000U) != 0 ? (crc << 1U) ^ 0x1021U : crc << 1U;
    }
    table[byte] = static_cast<std::uint16_t>(crc & 0xFFFFU);
  }
  return table;
}

constexpr std::array<std::uint16_t, 256> kCrc16Table = MakeCrc16Table();

}  // namespace

std::uint16_t Crc16(ByteSpan bytes) {
  std::uint32_t crc = 0;
  for (const std::byte byte : bytes) {
    const std::uint32_t index = ((crc >> 8U) ^ std::to_integer<std::uint32_t>(byte)) & 0xFFU;
    crc = ((crc << 8U) & 0xFFFFU) ^ kCrc16Table[index];
  }
  return static_cast<std::uint16_t>(crc);
}

SlotIndex SlotOf(ByteSpan run_tag, std::uint32_t slot_count) {
  KVF_DCHECK(IsValidSlotCount(slot_count), "slot counts are checked where a map or spec enters");
  const SlotIndex redis_slot = Crc16(run_tag) & (kRedisSlots - 1);
  if (slot_count == kRedisSlots) return redis_slot;
  const int extra_bits = std::countr_zero(slot_count) - std::countr_zero(kRedisSlots);
  const auto extra = static_cast<SlotIndex>(Hash64(run_tag) >> (64 - extra_bits));
  return redis_slot | (extra << 14U);
}

SlotIndex SlotOfSingle(std::string_view key, std::uint32_t slot_count) {
  if (const std::size_t open = key.find('{'); open != std::string_view::npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return SlotOf(AsBytes(key), slot_count);
}

}  // namespace kvfabric
