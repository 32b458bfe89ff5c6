#pragma once

// Key and content of a block as functions of its id in the trace, so that a reader knows every
// byte it must get without having kept any. Pure; any thread; no allocation but the key's.
//
// Content: 8-byte little-endian words x, x + g, x + 2g, ... (mod 2^64), x a bijective mix of the
// id and g odd. So at one place two ids differ in every word, and one block shifted by whole words
// is not itself.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/bytes.h"

namespace kvfabric {

// Eight bytes, big-endian.
std::string BlockKeyOf(std::uint64_t id);

void FillBlockContent(std::uint64_t id, MutableByteSpan block);

// Offset of the first byte that is not as FillBlockContent made it; nullopt when all are.
std::optional<std::size_t> FindWrongByte(std::uint64_t id, ByteSpan block);

}  // namespace kvfabric
