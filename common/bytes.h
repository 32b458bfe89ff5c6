#pragma once

// Bytes: spans over memory somebody else owns, and their conversions to text.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace kvfabric {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lower-case hexadecimal, two digits a byte.
std::string ToHex(ByteSpan bytes);

// Little-endian loads and stores at unaligned addresses: the order of all our binary formats.
template <typename T>
T LoadLe(const std::byte* from) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  std::memcpy(&value, from, sizeof(T));  // every supported host is little-endian
  return value;
}
template <typename T>
void StoreLe(std::byte* to, T value) {
  static_assert(std::is_unsigned_v<T>);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace kvfabric
