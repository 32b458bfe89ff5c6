#include "transport/frame_header.h"

#include <string>

#include "common/checksum.h"

namespace kvfabric {

namespace {

// Offsets as in docs/formats/frame.md.
constexpr std::size_t kMagicAt = 0, kVersionAt = 4, kOpAt = 6, kFlagsAt = 8, kDescriptorsAt = 9,
                      kStatusAt = 10, kRemainingAt = 12, kRequestAt = 16, kBodyBytesAt = 24,
                      kPayloadBytesAt = 28, kPayloadChecksumAt = 32, kBootEpochAt = 40,
                      kMapEpochAt = 48, kBodyHashAt = 56, kHeaderHashAt = 60;

std::uint32_t Hash32(ByteSpan bytes) { return static_cast<std::uint32_t>(Hash64(bytes)); }

Status OverLimit(std::string_view what, std::uint64_t got, std::uint64_t limit) {
  std::string text("frame: receive: ");
  text.append(what).append(" of ").append(std::to_string(got));
  text.append(" (limit ").append(std::to_string(limit)).append(")");
  return ResourceExhausted(std::move(text));
}

}  // namespace

std::uint32_t FrameBodyHash(ByteSpan body) { return Hash32(body); }

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> out{};
  std::byte* const to = out.data();
  StoreLe<std::uint32_t>(to + kMagicAt, kFrameMagic);
  StoreLe<std::uint16_t>(to + kVersionAt, kFrameVersion);
  StoreLe<std::uint16_t>(to + kOpAt, static_cast<std::uint16_t>(header.op));
  StoreLe<std::uint8_t>(to + kFlagsAt, header.flags);
  StoreLe<std::uint8_t>(to + kDescriptorsAt, header.descriptors);
  StoreLe<std::uint16_t>(to + kStatusAt, static_cast<std::uint16_t>(header.status));
  StoreLe<std::uint32_t>(to + kRemainingAt, header.remaining_ms);
  StoreLe<std::uint64_t>(to + kRequestAt, header.request_id);
  StoreLe<std::uint32_t>(to + kBodyBytesAt, header.body_bytes);
  StoreLe<std::uint32_t>(to + kPayloadBytesAt, header.payload_bytes);
  StoreLe<std::uint64_t>(to + kPayloadChecksumAt, header.payload_checksum);
  StoreLe<std::uint64_t>(to + kBootEpochAt, header.boot_epoch);
  StoreLe<std::uint64_t>(to + kMapEpochAt, header.map_epoch);
  StoreLe<std::uint32_t>(to + kBodyHashAt, header.body_hash);
  StoreLe<std::uint32_t>(to + kHeaderHashAt, Hash32(ByteSpan(out).first(kHeaderHashAt)));
  return out;
}

Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                      const FrameLimits& limits) {
  const std::byte* const from = bytes.data();
  if (LoadLe<std::uint32_t>(from + kMagicAt) != kFrameMagic) {
    return InvalidArgument("frame: receive: no frame magic: the other end speaks something else");
  }
  const auto version = LoadLe<std::uint16_t>(from + kVersionAt);
  if (version != kFrameVersion) {
    return Unimplemented("frame: receive: version " + std::to_string(version) +
                         " (this end speaks " + std::to_string(kFrameVersion) + ")");
  }
  if (LoadLe<std::uint32_t>(from + kHeaderHashAt) != Hash32(bytes.first(kHeaderHashAt))) {
    return InvalidArgument("frame: receive: header hash differs");
  }
  FrameHeader header;
  header.op = static_cast<FrameOp>(LoadLe<std::uint16_t>(from + kOpAt));
  header.flags = LoadLe<std::uint8_t>(from + kFlagsAt);
  header.descriptors = LoadLe<std::uint8_t>(from + kDescriptorsAt);
  const auto status = LoadLe<std::uint16_t>(from + kStatusAt);
  if (status > static_cast<std::uint16_t>(StatusCode::kUnauthenticated)) {
    return InvalidArgument("frame: receive: status " + std::to_string(status) + " is none");
  }
  header.status = static_cast<StatusCode>(status);
  header.remaining_ms = LoadLe<std::uint32_t>(from + kRemainingAt);
  header.request_id = LoadLe<std::uint64_t>(from + kRequestAt);
  header.body_bytes = LoadLe<std::uint32_t>(from + kBodyBytesAt);
  header.payload_bytes = LoadLe<std::uint32_t>(from + kPayloadBytesAt);
  header.payload_checksum = LoadLe<std::uint64_t>(from + kPayloadChecksumAt);
  header.boot_epoch = LoadLe<std::uint64_t>(from + kBootEpochAt);
  header.map_epoch = LoadLe<std::uint64_t>(from + kMapEpochAt);
  header.body_hash = LoadLe<std::uint32_t>(from + kBodyHashAt);
  if (header.body_bytes > limits.max_body_bytes) {
    return OverLimit("a body", header.body_bytes, limits.max_body_bytes);
  }
  if (header.payload_bytes > limits.max_payload_bytes) {
    return OverLimit("a payload", header.payload_bytes, limits.max_payload_bytes);
  }
  if (header.descriptors > limits.max_descriptors) {
    return OverLimit("descriptors", header.descriptors, limits.max_descriptors);
  }
  return header;
}

}  // namespace kvfabric
