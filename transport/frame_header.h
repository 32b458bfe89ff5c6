#pragma once

// FrameHeader: the 64 bytes before every message between our processes, on local sockets and on
// framed TCP. Format: docs/formats/frame.md. Values; any thread.

#include <array>
#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"

namespace kvfabric {

inline constexpr std::size_t kFrameHeaderBytes = 64;
inline constexpr std::uint32_t kFrameMagic = 0x4646564B;  // "KVFF" in memory
inline constexpr std::uint16_t kFrameVersion = 1;

// Operations below 64 are the local protocol's (transport/local_messages.h); from 64 on they
// belong to the bulk connections between agents, whose first frame must be kJoin.
enum class FrameOp : std::uint16_t {
  kError = 0,  // a reply to what could not be read; the connection closes after it
  kHello = 1,
  kNewMemfd = 2,
  kCloseMemfd = 3,
  kStaging = 4,
  kLookup = 5,
  kGet = 6,
  kPut = 7,
  kPutInline = 8,
  kRelease = 9,
  kRenew = 10,
  kDelete = 11,
  kStat = 12,
  kPing = 13,
  kJoin = 64,       // body: 16 bytes, the token that the peer session gave
  kPeerFetch = 65,  // bodies of these: agent/service
  kPeerPush = 66,
};

inline constexpr std::uint8_t kFrameReply = 1;  // answers the request of the same id
inline constexpr std::uint8_t kFrameMore = 2;   // another reply frame to this request follows

struct FrameHeader {
  FrameOp op = FrameOp::kError;
  std::uint8_t flags = 0;
  std::uint8_t descriptors = 0;         // carried beside this frame (Unix sockets only)
  StatusCode status = StatusCode::kOk;  // replies; not OK = the body is text
  std::uint32_t remaining_ms = 0;       // requests: time left when sent; 0 = none
  std::uint64_t request_id = 0;         // chosen by the requester; 0 = wants no reply
  std::uint32_t body_bytes = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;  // common/checksum.h, when the payload is one block
  std::uint64_t boot_epoch = 0;        // replies
  std::uint64_t map_epoch = 0;         // replies
  std::uint32_t body_hash = 0;         // set by the sender, compared by the receiver

  bool reply() const { return (flags & kFrameReply) != 0; }
  bool more() const { return (flags & kFrameMore) != 0; }
};

struct FrameLimits {
  std::uint32_t max_body_bytes = 1U << 20U;
  std::uint32_t max_payload_bytes = 64U << 20U;
  std::uint8_t max_descriptors = 0;
};

// Low 32 bits of XXH3-64 of the body.
std::uint32_t FrameBodyHash(ByteSpan body);
std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);
// INVALID_ARGUMENT: no magic, broken hash, a field out of range. UNIMPLEMENTED: another version.
// RESOURCE_EXHAUSTED: over a limit.
Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                      const FrameLimits& limits);

}  // namespace kvfabric
