#include "agent/service/local_codec.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

namespace {

// Same order in both: a cast is the conversion. The last ones pin that.
static_assert(static_cast<int>(wire::PutOutcome::kFailed) == static_cast<int>(PutStatus::kFailed));
static_assert(static_cast<int>(wire::LookupMiss::kNoMap) == static_cast<int>(MissReason::kNoMap));

}  // namespace

Deadline DeadlineOf(const FrameHeader& header, const Clock& clock) {
  return Deadline::After(clock,
                         std::min(std::chrono::milliseconds(header.remaining_ms), kMaxRequestTime));
}

KeyRange ToKeyRange(wire::LocalKeyRange range) {
  return {.first = range.first,
          .keys = std::move(range.keys),
          .parent_key = std::move(range.parent_key),
          .run_tag = std::move(range.run_tag)};
}

wire::LookupReply ToWire(const LookupAnswer& answer) {
  return {.hits = answer.hits,
          .found = answer.found,
          .lease_id = answer.lease_id,
          .lease_ms = static_cast<std::uint32_t>(answer.lease.count()),
          .local = answer.local,
          .peer = answer.peer,
          .miss_reason = static_cast<wire::LookupMiss>(answer.miss_reason)};
}

wire::PutReply ToWire(const PutAnswer& answer) {
  wire::PutReply reply;
  reply.copies = answer.copies;
  for (const PutStatus status : answer.status) {
    reply.status.push_back(static_cast<wire::PutOutcome>(status));
  }
  return reply;
}

wire::StatReply ToWire(const std::vector<PoolStatAnswer>& answer) {
  wire::StatReply reply;
  for (const PoolStatAnswer& pool : answer) {
    const EngineStats& engine = pool.engine;
    reply.pools.push_back({.pool = pool.pool_name,
                           .capacity_bytes = engine.capacity_bytes,
                           .used_bytes = engine.used_bytes,
                           .blocks = engine.blocks,
                           .leased_bytes = pool.leased_bytes,
                           .map_epoch = pool.map_epoch,
                           .counters = {{"pinned_bytes", engine.pinned_bytes},
                                        {"transient_bytes", engine.transient_bytes},
                                        {"pending_spill_bytes", engine.pending_spill_bytes},
                                        {"puts", engine.puts},
                                        {"already_exists", engine.already_exists},
                                        {"no_space", engine.no_space},
                                        {"evicted", engine.evicted},
                                        {"spilled", engine.spilled},
                                        {"deleted", engine.deleted}}});
  }
  return reply;
}

wire::PutReply AllPuts(std::size_t count, wire::PutOutcome outcome) {
  return {.status = std::vector<wire::PutOutcome>(count, outcome),
          .copies = std::vector<std::uint8_t>(count, 0)};
}

}  // namespace kvfabric
