#include "common/checksum.h"

// Inlined: the engine library must not need libxxhash.so.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "common/check.h"

namespace kvfabric {

struct BlockHasher::State {
  XXH3_state_t xxh3;
};

BlockHasher::BlockHasher() : state_(std::make_unique<State>()) { Reset(); }

BlockHasher::~BlockHasher() = default;

void BlockHasher::Reset() { XXH3_64bits_reset(&state_->xxh3); }

void BlockHasher::AddPiece(ByteSpan piece) {
  std::byte digest[8];
  StoreLe<std::uint64_t>(digest, XXH3_64bits(piece.data(), piece.size()));
  XXH3_64bits_update(&state_->xxh3, digest, sizeof(digest));
}

std::uint64_t BlockHasher::Finish() const { return XXH3_64bits_digest(&state_->xxh3); }

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
