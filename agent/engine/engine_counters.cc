#include "agent/engine/engine_counters.h"

namespace kvfabric {

EngineCounters::EngineCounters(MetricsRegistry* registry, const std::string& pool) {
  if (registry == nullptr) return;
  const MetricLabels labels = {{"pool", pool}};
  const auto counter = [&](What what, const char* name, const char* help) {
    exported_[what] = &registry->GetCounter(name, help, labels);
  };
  counter(kPuts, "kvfabric_engine_committed_blocks_total", "Blocks that became visible here");
  counter(kAlreadyExists, "kvfabric_engine_already_exists_total",
          "Writes that found the block here already");
  counter(kNoSpace, "kvfabric_engine_no_space_total",
          "Writes dropped because nothing could be evicted, or by a quota or budget");
  counter(kEvicted, "kvfabric_engine_evicted_blocks_total", "Blocks evicted and not handed on");
  counter(kEvictedBytes, "kvfabric_engine_evicted_bytes_total", "Bytes of evicted blocks");
  counter(kSpilled, "kvfabric_engine_spilled_blocks_total",
          "Blocks taken out by the evictor and handed to a peer");
  counter(kDeleted, "kvfabric_engine_deleted_blocks_total", "Blocks deleted by request");
  counter(kChecksumMismatches, "kvfabric_engine_checksum_mismatches_total",
          "Writes refused because the bytes did not match their checksum");
  used_bytes_ = &registry->GetGauge("kvfabric_engine_used_bytes",
                                    "Payload and metadata bytes, in-flight ones included", labels);
  pinned_bytes_ = &registry->GetGauge("kvfabric_engine_pinned_bytes",
                                      "Bytes of blocks that some reader holds", labels);
  blocks_ = &registry->GetGauge("kvfabric_engine_blocks", "Entries of the block table", labels);
}

void EngineCounters::ShowUse(std::uint64_t used_bytes, std::uint64_t pinned_bytes,
                             std::uint64_t blocks) {
  if (used_bytes_ == nullptr) return;
  used_bytes_->Set(static_cast<double>(used_bytes));
  pinned_bytes_->Set(static_cast<double>(pinned_bytes));
  blocks_->Set(static_cast<double>(blocks));
}

}  // namespace kvfabric
