#include "common/checksum.h"

#include <xxhash.h>

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

BlockHasher::BlockHasher() : state_(XXH3_createState()) {
  KVF_CHECK(state_ != nullptr, "out of memory for a hash state");
  Reset();
}

BlockHasher::~BlockHasher() { XXH3_freeState(state_); }

void BlockHasher::Reset() { XXH3_64bits_reset(state_); }

void BlockHasher::AddPiece(ByteSpan piece) {
  std::byte digest[8];
  StoreLe<std::uint64_t>(digest, XXH3_64bits(piece.data(), piece.size()));
  XXH3_64bits_update(state_, digest, sizeof(digest));
}

std::uint64_t BlockHasher::Finish() const { return XXH3_64bits_digest(state_); }

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
