#pragma once

// Between the local protocol's messages and what Fabric speaks. Pure; any thread.

#include <chrono>
#include <vector>

#include "agent/cluster/fabric.h"
#include "common/clock.h"
#include "transport/frame_header.h"
#include "transport/local_messages.h"

namespace kvfabric {

// No request lives longer, whatever it asks for.
inline constexpr std::chrono::milliseconds kMaxRequestTime{60'000};

Deadline DeadlineOf(const FrameHeader& header, const Clock& clock);
KeyRange ToKeyRange(wire::LocalKeyRange range);
wire::LookupReply ToWire(const LookupAnswer& answer);
wire::PutReply ToWire(const PutAnswer& answer);
wire::StatReply ToWire(const std::vector<PoolStatAnswer>& answer);
// A batch of which every block failed in the same way.
wire::PutReply AllPuts(std::size_t count, wire::PutOutcome outcome);

}  // namespace kvfabric
