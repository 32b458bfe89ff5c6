#include "common/checksum.h"

// Inlined: the engine library must not need libxxhash.so.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

void BlockHasher::AddPiece(ByteSpan piece) {
  const std::size_t at = digests_.size();
  digests_.resize(at + sizeof(std::uint64_t));
  StoreLe<std::uint64_t>(digests_.data() + at, XXH3_64bits(piece.data(), piece.size()));
}

std::uint64_t BlockHasher::Finish() const { return XXH3_64bits(digests_.data(), digests_.size()); }

std::uint64_t BlockChecksum(ByteSpan block) {
  if (block.size() <= kPieceBytes) {  // no state to allocate for the common small block
    std::byte digest[8];
    StoreLe<std::uint64_t>(digest, XXH3_64bits(block.data(), block.size()));
    return XXH3_64bits(digest, sizeof(digest));
  }
  BlockHasher hasher;
  for (std::size_t at = 0; at < block.size(); at += kPieceBytes) {
    hasher.AddPiece(block.subspan(at, std::min(kPieceBytes, block.size() - at)));
  }
  return hasher.Finish();
}

std::uint64_t CopyAndChecksum(MutableByteSpan to, ByteSpan from) {
  KVF_CHECK(to.size() == from.size(), "copy between spans of different length");
  if (from.size() <= kPieceBytes) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return BlockChecksum(to);
  }
  BlockHasher hasher;
  for (std::size_t at = 0; at < from.size(); at += kPieceBytes) {
    const std::size_t n = std::min(kPieceBytes, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, n);
    // The copy is hashed, not the source: the source may belong to a client that still writes.
    hasher.AddPiece(to.subspan(at, n));
  }
  return hasher.Finish();
}

std::uint64_t Hash64(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace kvfabric
