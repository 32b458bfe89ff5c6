#include "agent/service/peer_codec.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "kvfabric/v1/peer.pb.h"

namespace kvfabric {

namespace {

constexpr std::size_t kIdBytes = sizeof(KeyId);
constexpr std::size_t kEntryBytes = kIdBytes + 4;
constexpr std::size_t kMaxHoldersPerKey = 255;
constexpr int kMaxNodes = 65'535;

Status Broken(const char* message) {
  return InvalidArgument(std::string("peer ") + message + ": decode: lengths do not add up");
}

void AppendId(std::string& to, const KeyId& id) { to.append(AsText(id.bytes)); }

KeyId IdAt(const std::string& packed, std::size_t at) {
  KeyId id;
  std::memcpy(id.bytes.data(), packed.data() + at, kIdBytes);
  return id;
}

std::string PackIds(const std::vector<KeyId>& ids) {
  std::string packed;
  packed.reserve(ids.size() * kIdBytes);
  for (const KeyId& id : ids) AppendId(packed, id);
  return packed;
}

bool UnpackIds(const std::string& packed, std::vector<KeyId>& ids) {
  if (packed.size() % kIdBytes != 0) return false;
  ids.reserve(packed.size() / kIdBytes);
  for (std::size_t at = 0; at < packed.size(); at += kIdBytes) ids.push_back(IdAt(packed, at));
  return true;
}

template <typename T>
void AppendLe(std::string& to, T value) {
  std::array<std::byte, sizeof(T)> bytes{};
  StoreLe<T>(bytes.data(), value);
  to.append(AsText(bytes));
}

template <typename T>
T LeAt(const std::string& from, std::size_t at) {
  return LoadLe<T>(AsBytes(from).data() + at);
}

std::chrono::microseconds AgeOf(std::uint64_t age_us) {
  constexpr std::uint64_t kLongest = std::uint64_t{1} << 60U;  // no overflow in sums
  return std::chrono::microseconds(std::min(age_us, kLongest));
}

}  // namespace

void Encode(const KeepaliveState& from, v1::PeerKeepaliveReply& to) {
  for (const PoolColdness& pool : from.pools) {
    v1::PoolColdness& out = *to.add_pools();
    out.set_pool_uid(pool.pool_uid);
    out.set_coldest_age_us(static_cast<std::uint64_t>(pool.coldest_age.count()));
    out.set_free_bytes(pool.free_bytes);
  }
  to.set_inflight_bytes(from.inflight_bytes);
  to.set_draining(from.draining);
}
KeepaliveState Decode(const v1::PeerKeepaliveReply& from) {
  KeepaliveState to;
  for (const v1::PoolColdness& pool : from.pools()) {
    to.pools.push_back({pool.pool_uid(), AgeOf(pool.coldest_age_us()), pool.free_bytes()});
  }
  to.inflight_bytes = from.inflight_bytes();
  to.draining = from.draining();
  return to;
}

void Encode(const AnnounceRequest& from, v1::PeerAnnounce& to) {
  to.set_pool_uid(from.pool_uid);
  to.set_map_epoch(from.map_epoch);
  to.set_sequence(from.sequence);
  std::string& added = *to.mutable_added();
  added.reserve(from.added.size() * kEntryBytes);
  for (const DirectoryEntry& entry : from.added) {
    AppendId(added, entry.id);
    AppendLe<std::uint32_t>(added, entry.slot);
  }
  to.set_removed(PackIds(from.removed));
  to.set_snapshot_begin(from.snapshot_begin);
  to.set_snapshot_end(from.snapshot_end);
}

Result<AnnounceRequest> Decode(const v1::PeerAnnounce& from) {
  AnnounceRequest to;
  to.pool_uid = from.pool_uid();
  to.map_epoch = from.map_epoch();
  to.sequence = from.sequence();
  if (from.added().size() % kEntryBytes != 0 || !UnpackIds(from.removed(), to.removed)) {
    return Broken("announce");
  }
  to.added.reserve(from.added().size() / kEntryBytes);
  for (std::size_t at = 0; at < from.added().size(); at += kEntryBytes) {
    to.added.push_back({IdAt(from.added(), at), LeAt<std::uint32_t>(from.added(), at + kIdBytes)});
  }
  to.snapshot_begin = from.snapshot_begin();
  to.snapshot_end = from.snapshot_end();
  return to;
}

void Encode(const AnnounceReply& from, v1::PeerAnnounceReply& to) {
  to.set_resync(from.resync);
  to.set_has_other_holder(PackIds(from.has_other_holder));
}
Result<AnnounceReply> Decode(const v1::PeerAnnounceReply& from) {
  AnnounceReply to;
  to.resync = from.resync();
  if (!UnpackIds(from.has_other_holder(), to.has_other_holder)) return Broken("announce reply");
  return to;
}

void Encode(const LocateRequest& from, v1::PeerLocate& to) {
  to.set_pool_uid(from.pool_uid);
  to.set_map_epoch(from.map_epoch);
  to.set_forwarded(from.forwarded);
  for (const DirectoryEntry& entry : from.keys) {
    AppendId(*to.mutable_key_ids(), entry.id);
    AppendLe<std::uint32_t>(*to.mutable_slots(), entry.slot);
  }
}
Result<LocateRequest> Decode(const v1::PeerLocate& from) {
  LocateRequest to;
  to.pool_uid = from.pool_uid();
  to.map_epoch = from.map_epoch();
  to.forwarded = from.forwarded();
  const std::size_t count = from.key_ids().size() / kIdBytes;
  if (from.key_ids().size() != count * kIdBytes || from.slots().size() != count * 4) {
    return Broken("locate");
  }
  to.keys.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    to.keys.push_back(
        {IdAt(from.key_ids(), i * kIdBytes), LeAt<std::uint32_t>(from.slots(), i * 4)});
  }
  return to;
}

void Encode(const LocateReply& from, v1::PeerLocateReply& to) {
  std::unordered_map<std::string, std::uint16_t> index;
  for (const std::vector<std::string>& holders : from.holders) {
    const std::size_t at = to.holders().size();
    to.mutable_holders()->push_back('\0');
    std::size_t count = 0;
    for (const std::string& node : holders) {
      auto known = index.find(node);
      if (known == index.end()) {
        if (to.nodes_size() == kMaxNodes) continue;
        known = index.emplace(node, static_cast<std::uint16_t>(to.nodes_size())).first;
        to.add_nodes(node);
      }
      if (count == kMaxHoldersPerKey) break;
      AppendLe<std::uint16_t>(*to.mutable_holders(), known->second);
      ++count;
    }
    (*to.mutable_holders())[at] = static_cast<char>(count);
  }
}
Result<LocateReply> Decode(const v1::PeerLocateReply& from) {
  LocateReply to;
  const std::string& packed = from.holders();
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t count = static_cast<unsigned char>(packed[at++]);
    if (packed.size() - at < count * 2) return Broken("locate reply");
    std::vector<std::string>& holders = to.holders.emplace_back();
    for (std::size_t i = 0; i < count; ++i, at += 2) {
      const int node = LeAt<std::uint16_t>(packed, at);
      if (node >= from.nodes_size()) return Broken("locate reply");
      holders.push_back(from.nodes(node));
    }
  }
  return to;
}

void Encode(const LeaseRequest& from, v1::PeerLease& to) {
  to.set_pool_uid(from.pool_uid);
  to.set_key_ids(PackIds(from.ids));
}
Result<LeaseRequest> Decode(const v1::PeerLease& from) {
  LeaseRequest to;
  to.pool_uid = from.pool_uid();
  if (!UnpackIds(from.key_ids(), to.ids)) return Broken("lease");
  return to;
}

void Encode(const LeaseReply& from, v1::PeerLeaseReply& to) {
  for (const bool granted : from.granted) to.mutable_granted()->push_back(granted ? '\1' : '\0');
  to.set_lease_id(from.lease_id);
  to.set_lease_ms(static_cast<std::uint32_t>(from.lease.count()));
  for (const std::uint64_t length : from.lengths) to.add_lengths(length);
}
Result<LeaseReply> Decode(const v1::PeerLeaseReply& from) {
  LeaseReply to;
  if (static_cast<std::size_t>(from.lengths_size()) != from.granted().size()) {
    return Broken("lease reply");
  }
  for (const char granted : from.granted()) to.granted.push_back(granted == '\1');
  to.lease_id = from.lease_id();
  to.lease = std::chrono::milliseconds(from.lease_ms());
  to.lengths.assign(from.lengths().begin(), from.lengths().end());
  return to;
}

void Encode(const OfferRequest& from, v1::PeerOffer& to) {
  to.set_pool_uid(from.pool_uid);
  to.set_reason(static_cast<v1::PeerOffer::Reason>(from.reason));
  to.set_key_ids(PackIds(from.ids));
  for (const std::uint64_t length : from.lengths) to.add_lengths(length);
  for (const std::chrono::microseconds age : from.ages) {
    to.add_ages_us(static_cast<std::uint64_t>(age.count()));
  }
}
Result<OfferRequest> Decode(const v1::PeerOffer& from) {
  OfferRequest to;
  to.pool_uid = from.pool_uid();
  if (from.reason() < v1::PeerOffer::SPILL || from.reason() > v1::PeerOffer::DRAIN) {
    return InvalidArgument("peer offer: decode: unknown reason");
  }
  to.reason = static_cast<OfferReason>(from.reason());
  if (!UnpackIds(from.key_ids(), to.ids) ||
      to.ids.size() != static_cast<std::size_t>(from.lengths_size()) ||
      to.ids.size() != static_cast<std::size_t>(from.ages_us_size())) {
    return Broken("offer");
  }
  to.lengths.assign(from.lengths().begin(), from.lengths().end());
  for (const std::uint64_t age : from.ages_us()) to.ages.push_back(AgeOf(age));
  return to;
}

void Encode(const OfferReply& from, v1::PeerOfferReply& to) {
  for (const OfferAnswer answer : from.answers) {
    to.mutable_wanted()->push_back(static_cast<char>(answer));
  }
}
Result<OfferReply> Decode(const v1::PeerOfferReply& from) {
  OfferReply to;
  for (const char wanted : from.wanted()) {
    if (wanted < 0 || wanted > static_cast<char>(OfferAnswer::kHasIt)) return Broken("offer reply");
    to.answers.push_back(static_cast<OfferAnswer>(wanted));
  }
  return to;
}

void Encode(const DeleteAtPeerRequest& from, v1::PeerDelete& to) {
  to.set_pool_uid(from.pool_uid);
  to.set_key_ids(PackIds(from.ids));
}
Result<DeleteAtPeerRequest> Decode(const v1::PeerDelete& from) {
  DeleteAtPeerRequest to;
  to.pool_uid = from.pool_uid();
  if (!UnpackIds(from.key_ids(), to.ids)) return Broken("delete");
  return to;
}

}  // namespace kvfabric
