#include "agent/service/cache_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/block_key.h"

namespace kvfabric {

namespace {

// Wire types of protobuf.
enum : std::uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kFixed32 = 5 };

// Field numbers of cache.proto.
constexpr std::uint32_t kPutBlocks = 5;
constexpr std::uint32_t kBlockChecksum = 1, kBlockMetadata = 2, kBlockData = 3;
constexpr std::uint32_t kReplyBootEpoch = 1, kReplyMapEpoch = 2, kReplyBlocks = 3;
constexpr std::uint32_t kFoundFlag = 1, kFoundChecksum = 2, kFoundMetadata = 3, kFoundData = 4;

Status Malformed(const char* what) {
  return InvalidArgument(std::string("put request: decode: ") + what);
}

// Reads on over segment borders. `left` counts down to the end of the innermost message.
class SegmentReader {
 public:
  explicit SegmentReader(std::span<const ByteSpan> segments) : segments_(segments) {
    for (const ByteSpan segment : segments) left_ += segment.size();
  }

  std::size_t left() const { return left_; }

  bool Byte(std::uint8_t& value) {
    if (left_ == 0) return false;
    SkipEmpty();
    value = std::to_integer<std::uint8_t>(segments_[index_][offset_]);
    Advance(1);
    return true;
  }
  bool Varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      std::uint8_t byte = 0;
      if (!Byte(byte)) return false;
      if (shift == 63 && byte > 1) return false;
      if (shift < 64) value |= std::uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80U) == 0) return true;
    }
    return false;
  }
  bool Copy(std::byte* to, std::size_t bytes) {
    if (bytes > left_) return false;
    while (bytes > 0) {
      SkipEmpty();
      const std::size_t n = std::min(bytes, segments_[index_].size() - offset_);
      std::memcpy(to, segments_[index_].data() + offset_, n);
      to += n;
      bytes -= n;
      Advance(n);
    }
    return true;
  }
  bool Append(std::string& to, std::size_t bytes) {
    if (bytes > left_) return false;
    const std::size_t at = to.size();
    to.resize(at + bytes);
    return Copy(reinterpret_cast<std::byte*>(to.data()) + at, bytes);
  }
  bool Skip(std::size_t bytes) {
    if (bytes > left_) return false;
    while (bytes > 0) {
      SkipEmpty();
      const std::size_t n = std::min(bytes, segments_[index_].size() - offset_);
      bytes -= n;
      Advance(n);
    }
    return true;
  }
  // A view when all of it lies in one segment; empty otherwise.
  ByteSpan View(std::size_t bytes) {
    SkipEmpty();
    if (bytes == 0 || bytes > left_ || segments_[index_].size() - offset_ < bytes) return {};
    const ByteSpan view = segments_[index_].subspan(offset_, bytes);
    Advance(bytes);
    return view;
  }

 private:
  void SkipEmpty() {
    while (index_ < segments_.size() && offset_ == segments_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }
  void Advance(std::size_t bytes) {
    offset_ += bytes;
    left_ -= bytes;
  }

  std::span<const ByteSpan> segments_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
  std::size_t left_ = 0;
};

struct Tag {
  std::uint32_t field = 0;
  std::uint32_t type = 0;
};

bool ReadTag(SegmentReader& reader, Tag& tag) {
  std::uint64_t raw = 0;
  if (!reader.Varint(raw) || raw > 0xFFFFFFFFU) return false;
  tag = {static_cast<std::uint32_t>(raw >> 3U), static_cast<std::uint32_t>(raw & 7U)};
  return tag.field != 0;
}

void PutVarint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    value >>= 7U;
  }
  out.push_back(static_cast<char>(value));
}

void PutTag(std::string& out, std::uint32_t field, std::uint32_t type) {
  PutVarint(out, (std::uint64_t{field} << 3U) | type);
}

// Skips one field's value; with `copy` appends its encoding, tag included.
bool PassField(SegmentReader& reader, Tag tag, std::string* copy) {
  std::uint64_t value = 0;
  std::size_t bytes = 0;
  if (copy != nullptr) PutTag(*copy, tag.field, tag.type);
  switch (tag.type) {
    case kVarint:
      if (!reader.Varint(value)) return false;
      if (copy != nullptr) PutVarint(*copy, value);
      return true;
    case kFixed64:
      bytes = 8;
      break;
    case kFixed32:
      bytes = 4;
      break;
    case kDelimited:
      if (!reader.Varint(value) || value > reader.left()) return false;
      bytes = static_cast<std::size_t>(value);
      if (copy != nullptr) PutVarint(*copy, value);
      break;
    default:
      return false;  // groups: not ours, in no version
  }
  return copy != nullptr ? reader.Append(*copy, bytes) : reader.Skip(bytes);
}

Status ReadData(SegmentReader& reader, std::size_t bytes, const PutWireLimits& limits, PutWire& put,
                PutWire::Block& block) {
  block.data = reader.View(bytes);
  if (bytes == 0 || !block.data.empty()) return Status::Ok();
  if (put.gathered_bytes + bytes > limits.max_gathered_bytes) {
    return InvalidArgument("put request: more than " + std::to_string(limits.max_gathered_bytes) +
                           " bytes in one call: put fewer blocks at a time");
  }
  // Left uninitialised: every byte is overwritten.
  std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);
  if (!reader.Copy(memory.get(), bytes)) return Malformed("truncated block");
  block.data = {memory.get(), bytes};
  put.gathered_bytes += bytes;
  put.gathered.push_back(std::move(memory));
  return Status::Ok();
}

Status ReadBlock(SegmentReader& reader, std::size_t bytes, const PutWireLimits& limits,
                 PutWire& put) {
  if (put.blocks.size() >= limits.max_blocks) {
    return InvalidArgument("put request: more than " + std::to_string(limits.max_blocks) +
                           " blocks: put fewer at a time");
  }
  const std::size_t end = reader.left() - bytes;  // what is left behind this block
  PutWire::Block block;
  while (reader.left() > end) {
    Tag tag;
    std::uint64_t value = 0;
    if (!ReadTag(reader, tag) || reader.left() < end) return Malformed("broken block");
    if (tag.field == kBlockChecksum && tag.type == kVarint) {
      if (!reader.Varint(block.checksum)) return Malformed("broken checksum");
    } else if ((tag.field == kBlockMetadata || tag.field == kBlockData) && tag.type == kDelimited) {
      if (!reader.Varint(value) || reader.left() < end || value > reader.left() - end) {
        return Malformed("a length beyond its block");
      }
      if (tag.field == kBlockData) {
        KVF_RETURN_IF_ERROR(ReadData(reader, static_cast<std::size_t>(value), limits, put, block));
        continue;
      }
      if (value > kMaxBlockMetadataBytes) {
        return InvalidArgument("put request: metadata of " + std::to_string(value) +
                               " bytes (limit " + std::to_string(kMaxBlockMetadataBytes) + ")");
      }
      block.metadata.clear();
      if (!reader.Append(block.metadata, value)) return Malformed("truncated metadata");
    } else if (!PassField(reader, tag, nullptr)) {
      return Malformed("broken field in a block");
    }
  }
  if (reader.left() != end) return Malformed("a field beyond its block");
  put.blocks.push_back(std::move(block));
  return Status::Ok();
}

}  // namespace

Result<PutWire> ParsePut(std::span<const ByteSpan> segments, const PutWireLimits& limits) {
  PutWire put;
  SegmentReader reader(segments);
  while (reader.left() > 0) {
    Tag tag;
    if (!ReadTag(reader, tag)) return Malformed("broken tag");
    if (tag.field == kPutBlocks && tag.type == kDelimited) {
      std::uint64_t bytes = 0;
      if (!reader.Varint(bytes) || bytes > reader.left()) return Malformed("truncated block");
      KVF_RETURN_IF_ERROR(ReadBlock(reader, bytes, limits, put));
      continue;
    }
    if (!PassField(reader, tag, &put.head)) return Malformed("broken field");
    // One field may exceed it: the message as a whole is bounded by the server.
    if (put.head.size() > limits.max_head_bytes) {
      return InvalidArgument("put request: more than " + std::to_string(limits.max_head_bytes) +
                             " bytes of keys");
    }
  }
  return put;
}

std::string EncodeGetHead(std::uint64_t boot_epoch, std::uint64_t map_epoch) {
  std::string out;
  PutTag(out, kReplyBootEpoch, kVarint);
  PutVarint(out, boot_epoch);
  PutTag(out, kReplyMapEpoch, kVarint);
  PutVarint(out, map_epoch);
  return out;
}

std::string EncodeGetBlockPrefix(std::uint64_t checksum, std::string_view metadata,
                                 std::size_t data_bytes) {
  std::string inner;
  PutTag(inner, kFoundFlag, kVarint);
  PutVarint(inner, 1);
  PutTag(inner, kFoundChecksum, kVarint);
  PutVarint(inner, checksum);
  if (!metadata.empty()) {
    PutTag(inner, kFoundMetadata, kDelimited);
    PutVarint(inner, metadata.size());
    inner.append(metadata);
  }
  PutTag(inner, kFoundData, kDelimited);
  PutVarint(inner, data_bytes);

  std::string out;
  PutTag(out, kReplyBlocks, kDelimited);
  PutVarint(out, inner.size() + data_bytes);
  return out + inner;
}

std::string EncodeGetMiss() {
  std::string out;
  PutTag(out, kReplyBlocks, kDelimited);
  PutVarint(out, 0);
  return out;
}

}  // namespace kvfabric
