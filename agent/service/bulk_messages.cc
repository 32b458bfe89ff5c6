#include "agent/service/bulk_messages.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/identity.h"
#include "transport/wire.h"

namespace kvfabric {

namespace {

constexpr std::uint8_t kSpilledIn = 1, kHasOtherHolder = 2;
constexpr std::size_t kMaxUidBytes = 256, kMaxTenantBytes = 256;

std::int64_t Micros(Clock::TimePoint at) {
  return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
}

void PutId(WireWriter& out, const KeyId& id) { out.Raw(AsText(id.bytes)); }

KeyId TakeId(WireReader& in) {
  KeyId id;
  const std::string_view raw = in.Raw(id.bytes.size());
  if (raw.size() == id.bytes.size()) std::memcpy(id.bytes.data(), raw.data(), raw.size());
  return id;
}

void PutHeader(WireWriter& out, const BlockHeader& header, Clock::TimePoint now) {
  PutId(out, header.id);
  out.Raw(AsText(header.ns->digest.bytes));
  out.U8(static_cast<std::uint8_t>(header.ns->kind));
  out.Text16(header.ns->tenant);
  out.U16(header.lane.group);
  out.U16(header.lane.rank);
  out.Text16(header.key);
  PutId(out, header.parent);
  out.U32(header.depth);
  out.U32(header.slot);
  out.U64(header.length_bytes);
  out.U64(header.checksum);
  const std::int64_t age = std::max<std::int64_t>(0, Micros(now) - header.last_touch_us);
  out.U64(static_cast<std::uint64_t>(age));
  out.U8(static_cast<std::uint8_t>((header.spilled_in ? kSpilledIn : 0U) |
                                   (header.has_other_holder ? kHasOtherHolder : 0U)));
  out.Text16(header.metadata);
}

BlockHeader TakeHeader(WireReader& in, const std::string& pool_uid, Clock::TimePoint now) {
  BlockHeader header;
  auto ns = std::make_shared<Namespace>();
  header.id = TakeId(in);
  const std::string_view digest = in.Raw(ns->digest.bytes.size());
  if (digest.size() == ns->digest.bytes.size()) {
    std::memcpy(ns->digest.bytes.data(), digest.data(), digest.size());
  }
  const std::uint8_t kind = in.U8();
  if (kind > static_cast<std::uint8_t>(NamespaceKind::kSingle)) in.Fail();
  ns->kind = static_cast<NamespaceKind>(kind);
  ns->pool_uid = pool_uid;
  ns->tenant = in.Text16(kMaxTenantBytes);
  header.ns = std::move(ns);
  header.lane.group = in.U16();
  header.lane.rank = in.U16();
  header.key = in.Text16(kMaxKeyBytes);
  header.parent = TakeId(in);
  header.depth = in.U32();
  header.slot = in.U32();
  header.length_bytes = in.U64();
  header.checksum = in.U64();
  const std::uint64_t age = in.U64();
  // No older than this host's steady clock can say.
  header.last_touch_us =
      Micros(now) - static_cast<std::int64_t>(std::min(
                        age, static_cast<std::uint64_t>(std::max<std::int64_t>(0, Micros(now)))));
  const std::uint8_t flags = in.U8();
  header.spilled_in = (flags & kSpilledIn) != 0;
  header.has_other_holder = (flags & kHasOtherHolder) != 0;
  header.metadata = in.Text16(kMaxBlockMetadataBytes);
  if (header.key.empty()) in.Fail();
  return header;
}

Status CheckId(const BlockHeader& header) {
  if (MakeKeyId(header.ns->digest, header.lane, header.key) == header.id) return Status::Ok();
  return InvalidArgument("block " + header.id.ToString() +
                         ": its id is not that of its namespace, lane and key");
}

}  // namespace

std::string EncodeBulkFetch(const BulkFetch& fetch) {
  WireWriter out;
  out.Text16(fetch.pool_uid);
  out.U64(fetch.lease_id);
  out.U32(static_cast<std::uint32_t>(fetch.ids.size()));
  for (const KeyId& id : fetch.ids) PutId(out, id);
  return out.Take();
}

Result<BulkFetch> DecodeBulkFetch(ByteSpan body) {
  WireReader in(body);
  BulkFetch fetch;
  fetch.pool_uid = in.Text16(kMaxUidBytes);
  fetch.lease_id = in.U64();
  const std::size_t count = in.Count32(kMaxFetchItems, sizeof(KeyId));
  if (count == 0) in.Fail();
  fetch.ids.reserve(count);
  for (std::size_t i = 0; i < count; ++i) fetch.ids.push_back(TakeId(in));
  KVF_RETURN_IF_ERROR(in.Finish("bulk fetch"));
  return fetch;
}

std::string EncodeBulkPush(const std::string& pool_uid, OfferReason reason,
                           const BlockHeader& header, Clock::TimePoint now) {
  WireWriter out;
  out.Text16(pool_uid);
  out.U8(static_cast<std::uint8_t>(reason));
  PutHeader(out, header, now);
  return out.Take();
}

Result<BulkPush> DecodeBulkPush(ByteSpan body, Clock::TimePoint now) {
  WireReader in(body);
  BulkPush push;
  push.pool_uid = in.Text16(kMaxUidBytes);
  const std::uint8_t reason = in.U8();
  if (reason > static_cast<std::uint8_t>(OfferReason::kDrain)) in.Fail();
  push.reason = static_cast<OfferReason>(reason);
  push.header = TakeHeader(in, push.pool_uid, now);
  KVF_RETURN_IF_ERROR(in.Finish("bulk push"));
  KVF_RETURN_IF_ERROR(CheckId(push.header));
  return push;
}

std::string EncodeBlockHeader(const BlockHeader& header, Clock::TimePoint now) {
  WireWriter out;
  PutHeader(out, header, now);
  return out.Take();
}

Result<BlockHeader> DecodeBlockHeader(ByteSpan body, const std::string& pool_uid,
                                      Clock::TimePoint now) {
  WireReader in(body);
  BlockHeader header = TakeHeader(in, pool_uid, now);
  KVF_RETURN_IF_ERROR(in.Finish("block header"));
  KVF_RETURN_IF_ERROR(CheckId(header));
  return header;
}

}  // namespace kvfabric
