#include "trace/block_content.h"

#include <algorithm>
#include <cstring>

namespace kvfabric {
namespace {

constexpr std::size_t kWordBytes = 8;
constexpr std::size_t kLineWords = 8;
constexpr std::size_t kLineBytes = kWordBytes * kLineWords;
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio, odd

// Bijective (each step is), so different ids start differently.
std::uint64_t FirstWord(std::uint64_t id) {
  std::uint64_t x = id + kStep;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

// Fixed trip count and plain additions: the compiler makes vector code of it.
void MakeLine(std::uint64_t first_word, std::uint64_t (&line)[kLineWords]) {
  for (std::size_t i = 0; i < kLineWords; ++i) line[i] = first_word + i * kStep;
}

}  // namespace

std::string BlockKeyOf(std::uint64_t id) {
  std::string key(8, '\0');
  for (std::size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<char>(static_cast<unsigned char>(id >> (56U - 8U * i)));
  }
  return key;
}

void FillBlockContent(std::uint64_t id, MutableByteSpan block) {
  std::uint64_t word = FirstWord(id);
  std::uint64_t line[kLineWords];
  while (!block.empty()) {
    MakeLine(word, line);
    const std::size_t bytes = std::min(kLineBytes, block.size());
    if (bytes == kLineBytes) {
      std::memcpy(block.data(), line, kLineBytes);
    } else {
      std::memcpy(block.data(), line, bytes);
    }
    block = block.subspan(bytes);
    word += kLineWords * kStep;
  }
}

std::optional<std::size_t> FindWrongByte(std::uint64_t id, ByteSpan block) {
  std::uint64_t word = FirstWord(id);
  std::uint64_t expected[kLineWords];
  std::uint64_t found[kLineWords];
  std::size_t offset = 0;
  for (; block.size() - offset >= kLineBytes; offset += kLineBytes, word += kLineWords * kStep) {
    MakeLine(word, expected);
    std::memcpy(found, block.data() + offset, kLineBytes);
    std::uint64_t different = 0;
    for (std::size_t i = 0; i < kLineWords; ++i) different |= expected[i] ^ found[i];
    if (different != 0) break;
  }
  // The line that differs, or the short one at the end.
  MakeLine(word, expected);
  const auto* bytes = reinterpret_cast<const std::byte*>(expected);
  const std::size_t end = std::min(block.size(), offset + kLineBytes);
  for (std::size_t at = offset; at < end; ++at) {
    if (block[at] != bytes[at - offset]) return at;
  }
  return std::nullopt;
}

}  // namespace kvfabric
