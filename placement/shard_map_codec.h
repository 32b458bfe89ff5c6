#pragma once

// The two written forms of a shard map.
//
// 1. Table text, in the KVCacheShardMap resource: standard base64 (with padding) of the table,
//    slot-major, each entry an unsigned 16-bit big-endian member index, 0xFFFF = no owner. Its
//    checksum is XXH3-64 (seed 0) of those big-endian bytes, written as 16 hex digits.
// 2. Map bytes, for an agent's "last map" on disk and for Control. All integers little-endian;
//    str = u16 length + that many bytes (at most 512):
//      u32 magic "KVFM", u16 version (1), u16 zero
//      str pool_uid, u64 term, u64 epoch, u32 slot_count, u8 replicas, u8 owners_per_slot,
//      u16 member count, then per member: str node_name, str agent_uid, str address,
//      u16 grpc_port, u16 bulk_port, str zone, u64 weight, u8 state
//      slot_count x owners_per_slot x u16 table
//      u64 XXH3-64 of everything before it
//    A reader refuses any other version; tests/placement/golden keeps one file of each version.
//
// Decoding never trusts its input: every fault is a Status naming it (DataLoss for a checksum,
// InvalidArgument else), nothing is read past the end, and memory is bounded by kMaxMembers and
// kMaxSlotCount. Pure functions; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "placement/shard_map.h"

namespace kvfabric {

std::string EncodeTable(std::span<const MemberIndex> table);
std::uint64_t TableChecksum(std::span<const MemberIndex> table);
std::string TableChecksumText(std::span<const MemberIndex> table);

// `shape` = what the rest of the resource says the table must be.
Result<std::vector<MemberIndex>> DecodeTable(std::string_view text, const TableShape& shape);

// `map` must be valid and its strings at most 512 bytes long, else InvalidArgument.
Result<std::vector<std::byte>> SerializeShardMap(const ShardMap& map);
Result<ShardMap> ParseShardMap(ByteSpan bytes);

}  // namespace kvfabric
