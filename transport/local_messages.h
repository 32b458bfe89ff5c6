#pragma once

// The bodies of the local protocol: what a client and its agent say over the Unix socket, and over
// framed TCP in clear. Format and order of messages: docs/formats/local.md. Values; any thread.
//
// Every Decode checks all lengths, counts and enums; what it returns keeps the limits below.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/block_key.h"
#include "common/bytes.h"
#include "common/status.h"

namespace kvfabric::wire {

inline constexpr std::uint16_t kLocalProtocolVersion = 1;
inline constexpr std::size_t kMaxKeysPerRequest = 8'192;
inline constexpr std::size_t kMaxLanesPerRequest = 64;
inline constexpr std::size_t kMaxLeasesPerRelease = 16'384;
inline constexpr std::size_t kMaxTokenBytes = 4'096;
inline constexpr std::size_t kMaxFingerprintBytes = 4'096;

// Keys [first, first + keys.size()) of a chain, or independent keys. A view, for encoding.
struct KeyRangeView {
  std::uint32_t first = 0;
  std::span<const std::string_view> keys{};
  std::string_view parent_key{};  // key at depth first - 1; empty when first = 0
  std::string_view run_tag{};     // key at RunStart(first); empty = keys[0]
};
// The same, owned: what a decoder returns.
struct LocalKeyRange {
  std::uint32_t first = 0;
  std::vector<std::string> keys;  // 1..kMaxKeysPerRequest of 1..kMaxKeyBytes
  std::string parent_key;
  std::string run_tag;
};

// HELLO: the first frame of a connection.
struct HelloRequest {
  std::uint16_t version = kLocalProtocolVersion;
  std::string token;
  std::string pool;  // "namespace/name"; empty = administration only (STAT, PING)
  std::string fingerprint;
  NamespaceKind kind = NamespaceKind::kChain;
};
struct MemfdEntry {
  std::uint64_t id = 0;  // never reused in one agent run
  std::uint64_t size_bytes = 0;
};
struct HelloReply {
  std::uint16_t version = kLocalProtocolVersion;
  std::uint32_t lease_ms = 0;
  std::string pool_uid;
  std::vector<MemfdEntry> memfds;  // one descriptor each, in this order
};

// NEW_MEMFD, agent to client: one descriptor each, before any location names them.
struct NewMemfd {
  std::vector<MemfdEntry> memfds;
};
// CLOSE_MEMFD, agent to client; the client unmaps and replies with the same body.
struct CloseMemfd {
  std::uint64_t id = 0;
};
// STAGING, client to agent, with one descriptor: a memfd sealed against shrinking and growing.
struct StagingRequest {
  std::uint64_t size_bytes = 0;
};

struct LookupRequest {
  std::vector<Lane> lanes;  // 1..kMaxLanesPerRequest
  LocalKeyRange range;
};
enum class LookupMiss : std::uint8_t { kNone, kNotFound, kLeaseBudget, kDeadline, kNoMap };
struct LookupReply {
  std::uint32_t hits = 0;
  std::vector<bool> found;  // Single only
  std::uint64_t lease_id = 0;
  std::uint32_t lease_ms = 0;
  std::uint32_t local = 0;
  std::uint32_t peer = 0;
  LookupMiss miss_reason = LookupMiss::kNone;
};

struct GetRequest {
  std::uint64_t lease_id = 0;  // 0 = takes its own
  Lane lane;
  LocalKeyRange range;
};
enum class GetPlace : std::uint8_t { kMiss = 0, kMemfd = 1, kInline = 2 };
struct GetEntry {
  GetPlace place = GetPlace::kMiss;
  bool from_peer = false;
  std::uint64_t memfd_id = 0;  // kMemfd
  std::uint64_t offset = 0;    // kMemfd
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;
  std::string metadata;
};
// One part of an answer; parts come in order of keys. The payload of a part's frame holds the
// bytes of its kInline entries one after the other.
struct GetReply {
  std::uint64_t lease_id = 0;
  std::uint32_t lease_ms = 0;
  std::uint32_t first_index = 0;  // index in the request of entries[0]
  std::vector<GetEntry> entries;
};

struct PutEntry {
  std::uint64_t offset = 0;  // in the staging memfd
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;  // 0 = not given
  std::string metadata;
};
struct PutRequest {
  Lane lane;
  LocalKeyRange range;
  std::vector<PutEntry> entries;  // one per key
};
// PUT_INLINE: one key; the block is the frame's payload, its checksum in the frame's header.
struct PutInlineRequest {
  Lane lane;
  LocalKeyRange range;
  std::string metadata;
};
enum class PutOutcome : std::uint8_t {
  kOk = 0,
  kAlreadyExists = 1,
  kNoSpace = 2,
  kChecksumMismatch = 3,
  kFailed = 4
};
struct PutReply {
  std::vector<PutOutcome> status;
  std::vector<std::uint8_t> copies;
};

struct ReleaseRequest {
  std::vector<std::uint64_t> lease_ids;
};
struct RenewRequest {
  std::uint64_t lease_id = 0;
};
struct RenewReply {
  bool renewed = false;
  std::uint32_t lease_ms = 0;
};
struct DeleteRequest {
  Lane lane;
  LocalKeyRange range;
};
struct DeleteReply {
  std::uint32_t deleted = 0;
};

struct PoolStat {
  std::string pool;
  std::uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0, leased_bytes = 0, map_epoch = 0;
  std::vector<std::pair<std::string, std::uint64_t>> counters;
};
struct StatReply {
  std::vector<PoolStat> pools;
};

std::string Encode(const HelloRequest& message);
std::string Encode(const HelloReply& message);
std::string Encode(const NewMemfd& message);
std::string Encode(const CloseMemfd& message);
std::string Encode(const StagingRequest& message);
std::string EncodeLookup(std::span<const Lane> lanes, const KeyRangeView& range);
std::string Encode(const LookupReply& message);
std::string EncodeGet(std::uint64_t lease_id, Lane lane, const KeyRangeView& range);
std::string Encode(const GetReply& message);
std::string EncodePut(Lane lane, const KeyRangeView& range, std::span<const PutEntry> entries);
std::string EncodePutInline(Lane lane, const KeyRangeView& range, std::string_view metadata);
std::string Encode(const PutReply& message);
std::string Encode(const ReleaseRequest& message);
std::string Encode(const RenewRequest& message);
std::string Encode(const RenewReply& message);
std::string EncodeDelete(Lane lane, const KeyRangeView& range);
std::string Encode(const DeleteReply& message);
std::string Encode(const StatReply& message);

// INVALID_ARGUMENT for anything but one whole message within the limits.
template <typename T>
Result<T> Decode(ByteSpan body) = delete;
template <>
Result<HelloRequest> Decode(ByteSpan body);
template <>
Result<HelloReply> Decode(ByteSpan body);
template <>
Result<NewMemfd> Decode(ByteSpan body);
template <>
Result<CloseMemfd> Decode(ByteSpan body);
template <>
Result<StagingRequest> Decode(ByteSpan body);
template <>
Result<LookupRequest> Decode(ByteSpan body);
template <>
Result<LookupReply> Decode(ByteSpan body);
template <>
Result<GetRequest> Decode(ByteSpan body);
template <>
Result<GetReply> Decode(ByteSpan body);
template <>
Result<PutRequest> Decode(ByteSpan body);
template <>
Result<PutInlineRequest> Decode(ByteSpan body);
template <>
Result<PutReply> Decode(ByteSpan body);
template <>
Result<ReleaseRequest> Decode(ByteSpan body);
template <>
Result<RenewRequest> Decode(ByteSpan body);
template <>
Result<RenewReply> Decode(ByteSpan body);
template <>
Result<DeleteRequest> Decode(ByteSpan body);
template <>
Result<DeleteReply> Decode(ByteSpan body);
template <>
Result<StatReply> Decode(ByteSpan body);

}  // namespace kvfabric::wire
