#include "transport/local_messages.h"

#include <utility>

#include "transport/wire.h"

namespace kvfabric::wire {

namespace {

constexpr std::size_t kMaxPoolBytes = 512;
constexpr std::size_t kMaxMemfdsPerFrame = 256;
constexpr std::size_t kMaxPools = 4'096;
constexpr std::size_t kMaxCounters = 256;
constexpr std::size_t kMinGetEntryBytes = 2;
constexpr std::size_t kMinPutEntryBytes = 26;

template <typename E>
E Enum(WireReader& in, E last) {
  const std::uint8_t value = in.U8();
  if (value > static_cast<std::uint8_t>(last)) in.Fail();
  return in.ok() ? static_cast<E>(value) : E{};
}

bool Flag(WireReader& in) {
  const std::uint8_t value = in.U8();
  if (value > 1) in.Fail();
  return value == 1;
}

void PutLane(WireWriter& out, Lane lane) {
  out.U16(lane.group);
  out.U16(lane.rank);
}

Lane TakeLane(WireReader& in) {
  Lane lane;
  lane.group = in.U16();
  lane.rank = in.U16();
  return lane;
}

void PutRange(WireWriter& out, const KeyRangeView& range) {
  out.U32(range.first);
  out.Text16(range.parent_key);
  out.Text16(range.run_tag);
  out.U32(static_cast<std::uint32_t>(range.keys.size()));
  for (const std::string_view key : range.keys) out.Text16(key);
}

LocalKeyRange TakeRange(WireReader& in) {
  LocalKeyRange range;
  range.first = in.U32();
  range.parent_key = in.Text16(kMaxKeyBytes);
  range.run_tag = in.Text16(kMaxKeyBytes);
  const std::size_t count = in.Count32(kMaxKeysPerRequest, 3);
  if (count == 0 || range.first > 0x7FFFFFFFU) in.Fail();
  range.keys.reserve(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    range.keys.emplace_back(in.Text16(kMaxKeyBytes));
    if (range.keys.back().empty()) in.Fail();
  }
  return range;
}

void PutMemfds(WireWriter& out, const std::vector<MemfdEntry>& memfds) {
  out.U32(static_cast<std::uint32_t>(memfds.size()));
  for (const MemfdEntry& memfd : memfds) {
    out.U64(memfd.id);
    out.U64(memfd.size_bytes);
  }
}

std::vector<MemfdEntry> TakeMemfds(WireReader& in) {
  std::vector<MemfdEntry> memfds(in.Count32(kMaxMemfdsPerFrame, 16));
  for (MemfdEntry& memfd : memfds) {
    memfd.id = in.U64();
    memfd.size_bytes = in.U64();
  }
  return memfds;
}

void PutIds(WireWriter& out, const std::vector<std::uint64_t>& ids) {
  out.U32(static_cast<std::uint32_t>(ids.size()));
  for (const std::uint64_t id : ids) out.U64(id);
}

template <typename T>
Result<T> Finished(const WireReader& in, std::string_view name, T message) {
  KVF_RETURN_IF_ERROR(in.Finish(name));
  return message;
}

}  // namespace

std::string Encode(const HelloRequest& message) {
  WireWriter out;
  out.U16(message.version);
  out.U8(static_cast<std::uint8_t>(message.kind));
  out.Text16(message.token);
  out.Text16(message.pool);
  out.Text16(message.fingerprint);
  return out.Take();
}

template <>
Result<HelloRequest> Decode(ByteSpan body) {
  WireReader in(body);
  HelloRequest message;
  message.version = in.U16();
  message.kind = Enum(in, NamespaceKind::kSingle);
  message.token = in.Text16(kMaxTokenBytes);
  message.pool = in.Text16(kMaxPoolBytes);
  message.fingerprint = in.Text16(kMaxFingerprintBytes);
  return Finished(in, "HELLO", std::move(message));
}

std::string Encode(const HelloReply& message) {
  WireWriter out;
  out.U16(message.version);
  out.U32(message.lease_ms);
  out.Text16(message.pool_uid);
  PutMemfds(out, message.memfds);
  return out.Take();
}

template <>
Result<HelloReply> Decode(ByteSpan body) {
  WireReader in(body);
  HelloReply message;
  message.version = in.U16();
  message.lease_ms = in.U32();
  message.pool_uid = in.Text16(kMaxPoolBytes);
  message.memfds = TakeMemfds(in);
  return Finished(in, "HELLO reply", std::move(message));
}

std::string Encode(const NewMemfd& message) {
  WireWriter out;
  PutMemfds(out, message.memfds);
  return out.Take();
}

template <>
Result<NewMemfd> Decode(ByteSpan body) {
  WireReader in(body);
  NewMemfd message{TakeMemfds(in)};
  return Finished(in, "NEW_MEMFD", std::move(message));
}

std::string Encode(const CloseMemfd& message) {
  WireWriter out;
  out.U64(message.id);
  return out.Take();
}

template <>
Result<CloseMemfd> Decode(ByteSpan body) {
  WireReader in(body);
  return Finished(in, "CLOSE_MEMFD", CloseMemfd{in.U64()});
}

std::string Encode(const StagingRequest& message) {
  WireWriter out;
  out.U64(message.size_bytes);
  return out.Take();
}

template <>
Result<StagingRequest> Decode(ByteSpan body) {
  WireReader in(body);
  const StagingRequest message{in.U64()};
  return Finished(in, "STAGING", message);
}

std::string EncodeLookup(std::span<const Lane> lanes, const KeyRangeView& range) {
  WireWriter out;
  out.U8(static_cast<std::uint8_t>(lanes.size()));
  for (const Lane lane : lanes) PutLane(out, lane);
  PutRange(out, range);
  return out.Take();
}

template <>
Result<LookupRequest> Decode(ByteSpan body) {
  WireReader in(body);
  LookupRequest message;
  const std::size_t lanes = in.U8();
  if (lanes == 0 || lanes > kMaxLanesPerRequest) in.Fail();
  for (std::size_t i = 0; i < lanes && in.ok(); ++i) message.lanes.push_back(TakeLane(in));
  message.range = TakeRange(in);
  return Finished(in, "LOOKUP", std::move(message));
}

std::string Encode(const LookupReply& message) {
  WireWriter out;
  out.U32(message.hits);
  out.U64(message.lease_id);
  out.U32(message.lease_ms);
  out.U32(message.local);
  out.U32(message.peer);
  out.U8(static_cast<std::uint8_t>(message.miss_reason));
  out.U32(static_cast<std::uint32_t>(message.found.size()));
  for (const bool found : message.found) out.U8(found ? 1 : 0);
  return out.Take();
}

template <>
Result<LookupReply> Decode(ByteSpan body) {
  WireReader in(body);
  LookupReply message;
  message.hits = in.U32();
  message.lease_id = in.U64();
  message.lease_ms = in.U32();
  message.local = in.U32();
  message.peer = in.U32();
  message.miss_reason = Enum(in, LookupMiss::kNoMap);
  message.found.resize(in.Count32(kMaxKeysPerRequest, 1));
  for (std::size_t i = 0; i < message.found.size(); ++i) message.found[i] = Flag(in);
  return Finished(in, "LOOKUP reply", std::move(message));
}

std::string EncodeGet(std::uint64_t lease_id, Lane lane, const KeyRangeView& range) {
  WireWriter out;
  out.U64(lease_id);
  PutLane(out, lane);
  PutRange(out, range);
  return out.Take();
}

template <>
Result<GetRequest> Decode(ByteSpan body) {
  WireReader in(body);
  GetRequest message;
  message.lease_id = in.U64();
  message.lane = TakeLane(in);
  message.range = TakeRange(in);
  return Finished(in, "GET", std::move(message));
}

std::string Encode(const GetReply& message) {
  WireWriter out;
  out.U64(message.lease_id);
  out.U32(message.lease_ms);
  out.U32(message.first_index);
  out.U32(static_cast<std::uint32_t>(message.entries.size()));
  for (const GetEntry& entry : message.entries) {
    out.U8(static_cast<std::uint8_t>(entry.place));
    out.U8(entry.from_peer ? 1 : 0);
    if (entry.place == GetPlace::kMiss) continue;
    if (entry.place == GetPlace::kMemfd) {
      out.U64(entry.memfd_id);
      out.U64(entry.offset);
    }
    out.U64(entry.length);
    out.U64(entry.checksum);
    out.Text16(entry.metadata);
  }
  return out.Take();
}

template <>
Result<GetReply> Decode(ByteSpan body) {
  WireReader in(body);
  GetReply message;
  message.lease_id = in.U64();
  message.lease_ms = in.U32();
  message.first_index = in.U32();
  const std::size_t count = in.Count32(kMaxKeysPerRequest, kMinGetEntryBytes);
  message.entries.reserve(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    GetEntry& entry = message.entries.emplace_back();
    entry.place = Enum(in, GetPlace::kInline);
    entry.from_peer = Flag(in);
    if (entry.place == GetPlace::kMiss) continue;
    if (entry.place == GetPlace::kMemfd) {
      entry.memfd_id = in.U64();
      entry.offset = in.U64();
    }
    entry.length = in.U64();
    entry.checksum = in.U64();
    entry.metadata = in.Text16(kMaxBlockMetadataBytes);
  }
  return Finished(in, "GET reply", std::move(message));
}

std::string EncodePut(Lane lane, const KeyRangeView& range, std::span<const PutEntry> entries) {
  WireWriter out;
  PutLane(out, lane);
  PutRange(out, range);
  out.U32(static_cast<std::uint32_t>(entries.size()));
  for (const PutEntry& entry : entries) {
    out.U64(entry.offset);
    out.U64(entry.length);
    out.U64(entry.checksum);
    out.Text16(entry.metadata);
  }
  return out.Take();
}

template <>
Result<PutRequest> Decode(ByteSpan body) {
  WireReader in(body);
  PutRequest message;
  message.lane = TakeLane(in);
  message.range = TakeRange(in);
  const std::size_t count = in.Count32(kMaxKeysPerRequest, kMinPutEntryBytes);
  if (count != message.range.keys.size()) in.Fail();
  message.entries.reserve(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    PutEntry& entry = message.entries.emplace_back();
    entry.offset = in.U64();
    entry.length = in.U64();
    entry.checksum = in.U64();
    entry.metadata = in.Text16(kMaxBlockMetadataBytes);
  }
  return Finished(in, "PUT", std::move(message));
}

std::string EncodePutInline(Lane lane, const KeyRangeView& range, std::string_view metadata) {
  WireWriter out;
  PutLane(out, lane);
  PutRange(out, range);
  out.Text16(metadata);
  return out.Take();
}

template <>
Result<PutInlineRequest> Decode(ByteSpan body) {
  WireReader in(body);
  PutInlineRequest message;
  message.lane = TakeLane(in);
  message.range = TakeRange(in);
  if (message.range.keys.size() != 1) in.Fail();
  message.metadata = in.Text16(kMaxBlockMetadataBytes);
  return Finished(in, "PUT_INLINE", std::move(message));
}

std::string Encode(const PutReply& message) {
  WireWriter out;
  out.U32(static_cast<std::uint32_t>(message.status.size()));
  for (std::size_t i = 0; i < message.status.size(); ++i) {
    out.U8(static_cast<std::uint8_t>(message.status[i]));
    out.U8(i < message.copies.size() ? message.copies[i] : std::uint8_t{0});
  }
  return out.Take();
}

template <>
Result<PutReply> Decode(ByteSpan body) {
  WireReader in(body);
  PutReply message;
  const std::size_t count = in.Count32(kMaxKeysPerRequest, 2);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    message.status.push_back(Enum(in, PutOutcome::kFailed));
    message.copies.push_back(in.U8());
  }
  return Finished(in, "PUT reply", std::move(message));
}

std::string Encode(const ReleaseRequest& message) {
  WireWriter out;
  PutIds(out, message.lease_ids);
  return out.Take();
}

template <>
Result<ReleaseRequest> Decode(ByteSpan body) {
  WireReader in(body);
  ReleaseRequest message;
  message.lease_ids.resize(in.Count32(kMaxLeasesPerRelease, 8));
  for (std::uint64_t& id : message.lease_ids) id = in.U64();
  return Finished(in, "RELEASE", std::move(message));
}

std::string Encode(const RenewRequest& message) {
  WireWriter out;
  out.U64(message.lease_id);
  return out.Take();
}

template <>
Result<RenewRequest> Decode(ByteSpan body) {
  WireReader in(body);
  const RenewRequest message{in.U64()};
  return Finished(in, "RENEW", message);
}

std::string Encode(const RenewReply& message) {
  WireWriter out;
  out.U8(message.renewed ? 1 : 0);
  out.U32(message.lease_ms);
  return out.Take();
}

template <>
Result<RenewReply> Decode(ByteSpan body) {
  WireReader in(body);
  RenewReply message;
  message.renewed = Flag(in);
  message.lease_ms = in.U32();
  return Finished(in, "RENEW reply", message);
}

std::string EncodeDelete(Lane lane, const KeyRangeView& range) {
  WireWriter out;
  PutLane(out, lane);
  PutRange(out, range);
  return out.Take();
}

template <>
Result<DeleteRequest> Decode(ByteSpan body) {
  WireReader in(body);
  DeleteRequest message;
  message.lane = TakeLane(in);
  message.range = TakeRange(in);
  return Finished(in, "DELETE", std::move(message));
}

std::string Encode(const DeleteReply& message) {
  WireWriter out;
  out.U32(message.deleted);
  return out.Take();
}

template <>
Result<DeleteReply> Decode(ByteSpan body) {
  WireReader in(body);
  const DeleteReply message{in.U32()};
  return Finished(in, "DELETE reply", message);
}

std::string Encode(const StatReply& message) {
  WireWriter out;
  out.U32(static_cast<std::uint32_t>(message.pools.size()));
  for (const PoolStat& pool : message.pools) {
    out.Text16(pool.pool);
    for (const std::uint64_t value :
         {pool.capacity_bytes, pool.used_bytes, pool.blocks, pool.leased_bytes, pool.map_epoch}) {
      out.U64(value);
    }
    out.U32(static_cast<std::uint32_t>(pool.counters.size()));
    for (const auto& [name, value] : pool.counters) {
      out.Text16(name);
      out.U64(value);
    }
  }
  return out.Take();
}

template <>
Result<StatReply> Decode(ByteSpan body) {
  WireReader in(body);
  StatReply message;
  message.pools.resize(in.Count32(kMaxPools, 46));
  for (PoolStat& pool : message.pools) {
    pool.pool = in.Text16(kMaxPoolBytes);
    for (std::uint64_t* value : {&pool.capacity_bytes, &pool.used_bytes, &pool.blocks,
                                 &pool.leased_bytes, &pool.map_epoch}) {
      *value = in.U64();
    }
    pool.counters.resize(in.Count32(kMaxCounters, 10));
    for (auto& [name, value] : pool.counters) {
      name = in.Text16(kMaxPoolBytes);
      value = in.U64();
    }
  }
  return Finished(in, "STAT reply", std::move(message));
}

}  // namespace kvfabric::wire
