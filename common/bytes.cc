#include "common/bytes.h"

#include <bit>

namespace kvfabric {

static_assert(std::endian::native == std::endian::little, "formats are stored in host order");

std::string ToHex(ByteSpan bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4U]);
    text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15U]);
  }
  return text;
}

}  // namespace kvfabric
