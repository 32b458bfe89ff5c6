// Any bytes are a fetch, a push or a block header within their limits, or INVALID_ARGUMENT; what
// decodes encodes back to the same bytes.

#include <cstddef>
#include <cstdint>

#include "agent/service/bulk_messages.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvfabric::Clock;
  const kvfabric::ByteSpan body(reinterpret_cast<const std::byte*>(data), size);
  const Clock::TimePoint now = Clock::TimePoint(std::chrono::hours(1));
  if (const auto fetch = kvfabric::DecodeBulkFetch(body); fetch.ok()) {
    KVF_CHECK(!fetch->ids.empty() && fetch->ids.size() <= kvfabric::kMaxFetchItems, "limit");
    KVF_CHECK(kvfabric::EncodeBulkFetch(*fetch) == kvfabric::AsText(body), "another fetch");
  }
  if (const auto push = kvfabric::DecodeBulkPush(body, now); push.ok()) {
    KVF_CHECK(push->header.key.size() <= kvfabric::kMaxKeyBytes, "limit of the key");
    KVF_CHECK(push->header.metadata.size() <= kvfabric::kMaxBlockMetadataBytes, "metadata");
  }
  if (const auto header = kvfabric::DecodeBlockHeader(body, "p", now); header.ok()) {
    KVF_CHECK(header->ns != nullptr && header->last_touch_us >= 0, "header");
  }
  return 0;
}
