#pragma once

// Bodies of the frames between agents: join, fetch, push. Format: docs/formats/bulk.md. Pure
// functions; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "agent/block/block_header.h"
#include "agent/cluster/peer_link.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvfabric {

inline constexpr std::size_t kBulkTokenBytes = 16;
inline constexpr std::size_t kMaxFetchItems = 4096;

struct BulkFetch {
  std::string pool_uid;
  std::uint64_t lease_id = 0;
  std::vector<KeyId> ids;
};
std::string EncodeBulkFetch(const BulkFetch& fetch);
Result<BulkFetch> DecodeBulkFetch(ByteSpan body);

struct BulkPush {
  std::string pool_uid;
  OfferReason reason = OfferReason::kSpill;
  BlockHeader header;
};
std::string EncodeBulkPush(const std::string& pool_uid, OfferReason reason,
                           const BlockHeader& header, Clock::TimePoint now);
// Refuses a header whose id is not that of its namespace, lane and key.
Result<BulkPush> DecodeBulkPush(ByteSpan body, Clock::TimePoint now);

// A block's header on its own, in front of its bytes; last touch travels as an age.
std::string EncodeBlockHeader(const BlockHeader& header, Clock::TimePoint now);
Result<BlockHeader> DecodeBlockHeader(ByteSpan body, const std::string& pool_uid,
                                      Clock::TimePoint now);

}  // namespace kvfabric
