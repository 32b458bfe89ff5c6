#pragma once

// The block checksum: XXH3-64 (seed 0) over the concatenated little-endian XXH3-64s of the
// block's 256 KiB pieces, also when there is one piece. Piece-wise so that the receiver hashes
// each piece while it is still in cache.

#include <cstdint>
#include <vector>

#include "common/bytes.h"

namespace kvfabric {

inline constexpr std::size_t kPieceBytes = std::size_t{256} << 10U;

// Hashes pieces in order. Feed exactly kPieceBytes each time but the last. One thread. Holds 8
// bytes for each piece.
class BlockHasher {
 public:
  void AddPiece(ByteSpan piece);
  std::uint64_t Finish() const;
  void Reset() { digests_.clear(); }

 private:
  std::vector<std::byte> digests_;
};

std::uint64_t BlockChecksum(ByteSpan block);
// Copies and hashes piece by piece, so that each piece is read from memory once.
// `to` must be as long as `from`.
std::uint64_t CopyAndChecksum(MutableByteSpan to, ByteSpan from);

// XXH3-64 of any bytes, seed 0: map checksums and the like, not block checksums.
std::uint64_t Hash64(ByteSpan bytes);

}  // namespace kvfabric
