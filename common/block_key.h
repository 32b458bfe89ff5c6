#pragma once

// How a block is named: key, lane, namespace, KeyId, run tag. DESIGN: words; the digest and
// KeyId formats are pinned by golden vectors in tests/golden/identity.txt.

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"

namespace kvfabric {

inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxBlockMetadataBytes = 4096;

// Chain: key i commits to all tokens before it. Single: independent keys (what RESP serves).
enum class NamespaceKind : std::uint8_t { kChain = 0, kSingle = 1 };

// Cache group and rank inside a namespace; kSharedRank = KV that all ranks hold alike.
struct Lane {
  static constexpr std::uint16_t kSharedRank = 0xFFFF;
  std::uint16_t group = 0;
  std::uint16_t rank = kSharedRank;

  auto operator<=>(const Lane&) const = default;
};

// SHA-256(len32 pool UID, len32 tenant, len32 fingerprint), lengths big-endian.
struct NamespaceDigest {
  std::array<std::byte, 32> bytes{};
  auto operator<=>(const NamespaceDigest&) const = default;
};

// First 16 bytes of SHA-256(namespace digest, group BE, rank BE, key). The name of a block in
// index, directory, wire and checkpoints. The all-zero id means "none" (no parent).
struct KeyId {
  std::array<std::byte, 16> bytes{};

  auto operator<=>(const KeyId&) const = default;
  bool none() const { return *this == KeyId{}; }
  // 64 bits that are uniform already: shard and bucket choice.
  std::uint64_t hash() const { return LoadLe<std::uint64_t>(bytes.data()); }
  std::string ToString() const { return ToHex(bytes); }
};

struct KeyIdHash {
  std::size_t operator()(const KeyId& id) const { return id.hash(); }
};
struct NamespaceDigestHash {
  std::size_t operator()(const NamespaceDigest& d) const {
    return LoadLe<std::uint64_t>(d.bytes.data());
  }
};

// UTF-8 lines `name=value`, sorted by name: what makes two namespaces never share bytes.
// Names and values must not contain a line feed; a name must not be empty or contain '='.
Result<std::string> EncodeFingerprint(const std::map<std::string, std::string>& fields);

Status ValidateKey(std::string_view key);

// A run is the unit of directory look-up in a chain: runs start at depths 0, 1, 2, 4, 8, 16, 32,
// 48, 64, ... (at most 16 blocks). Its tag is the key of its first block.
constexpr std::uint32_t RunStart(std::uint32_t depth) {
  if (depth < 2) return depth;
  if (depth >= 16) return depth - depth % 16;
  std::uint32_t start = 2;
  while (start * 2 <= depth) start *= 2;
  return start;
}

}  // namespace kvfabric
