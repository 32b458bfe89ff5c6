#include "agent/engine/local_engine.h"

#include <utility>

#include "agent/engine/block_handle.h"
#include "common/log.h"

namespace kvfabric {

LocalEngine::LocalEngine(Options options, Environment environment,
                         std::shared_ptr<BlockStore> store)
    : pool_uid_(std::move(options.pool_uid)),
      pool_name_(std::move(options.pool_name)),
      eviction_policy_(std::move(options.eviction_policy)),
      store_(std::move(store)),
      background_(environment.background) {
  // Pins of spilled blocks may outlive the engine: the leash makes the call nothing then.
  store_->SetSpillEnded(leash_.Bind([this] {
    if (paused_.exchange(false)) ScheduleEviction();
  }));
  store_->arena().Register(this);
}

LocalEngine::~LocalEngine() {
  leash_.Cut();
  store_->arena().Unregister(this);
  store_->Close();
}

Status LocalEngine::Validate(const Options& options, const Environment& environment) {
  const std::string where = "pool " + options.pool_name + ": ";
  if (environment.arena == nullptr) return InvalidArgument(where + "create engine: no arena");
  if (options.pool_uid.empty()) return InvalidArgument(where + "create engine: no pool uid");
  if (options.capacity_bytes == 0) return InvalidArgument(where + "capacity: 0 bytes (at least 1)");
  const std::uint32_t low = options.low_watermark_percent;
  const std::uint32_t high = options.high_watermark_percent;
  if (low == 0 || low > high || high > 100) {
    return InvalidArgument(where + "watermarks: low " + std::to_string(low) + ", high " +
                           std::to_string(high) + " percent (0 < low <= high <= 100)");
  }
  return Status::Ok();
}

Status LocalEngine::Reconfigure(const Options& options) {
  KVF_RETURN_IF_ERROR(Validate(options, {.arena = &store_->arena(), .background = background_}));
  if (options.pool_uid != pool_uid_ || options.eviction_policy != eviction_policy_) {
    return InvalidArgument("pool " + pool_name_ +
                           ": reconfigure: uid and eviction policy are fixed");
  }
  store_->SetLimits(options);
  if (store_->bytes().above_high()) ScheduleEviction();
  return Status::Ok();
}

Result<Reservation> LocalEngine::Reserve(BlockHeader header, BlockOrigin origin) {
  if (const Status fault = store_->CheckHeader(header, origin); !fault.ok()) {
    if (fault.code() == StatusCode::kInvalidArgument) LogRefusal(fault);
    return fault;
  }
  TenantAccount* tenant = store_->TenantFor(header.ns->tenant);
  const std::int64_t now_us = store_->NowUs();
  int for_memory = 0;
  int refused_rounds = 0;
  BlockStore::Attempt attempt;
  for (int step = 0;; ++step) {
    // What was evicted may not fit well, but that is better than evicting on and on.
    const bool any_fit = for_memory >= kMaxEvictionsForMemory / 2;
    attempt = store_->TryReserve(header, origin, tenant,
                                 any_fit ? DramArena::Fit::kAny : DramArena::Fit::kGood);
    if (attempt.refusal == BlockStore::Refusal::kNone) break;
    if (attempt.refusal == BlockStore::Refusal::kFinal || step >= kMaxInlineEvictions) break;
    const bool memory = attempt.refusal == BlockStore::Refusal::kArena;
    if (memory && for_memory++ >= kMaxEvictionsForMemory) break;
    const BlockStore::Eviction eviction = MakeRoom(attempt.refusal, tenant, now_us);
    if (eviction == BlockStore::Eviction::kNone) break;
    if (eviction == BlockStore::Eviction::kRefused && ++refused_rounds > kMaxRefusals) break;
  }
  if (store_->bytes().above_high()) ScheduleEviction();
  if (attempt.refusal == BlockStore::Refusal::kNone) {
    return Reservation(std::make_unique<Reservation::Slot>(store_, attempt.entry, origin));
  }
  if (attempt.refusal == BlockStore::Refusal::kArena) ScheduleReclaim(tenant->name);
  if (attempt.status.code() == StatusCode::kResourceExhausted) {
    store_->counters().Add(EngineCounters::kNoSpace);
  }
  return attempt.status.WithContext("pool " + pool_name_ + ": reserve");
}

// The writer hears of it as FAILED only.
void LocalEngine::LogRefusal(const Status& why) {
  const std::int64_t now_us = store_->NowUs();
  std::int64_t last = refusal_logged_us_.load(std::memory_order_relaxed);
  if (last != 0 && now_us - last < kRefusalLogUs) return;
  if (!refusal_logged_us_.compare_exchange_strong(last, now_us, std::memory_order_relaxed)) return;
  LogWarn("block refused", {{"pool", pool_name_}, {"reason", why.message()}});
}

BlockStore::Eviction LocalEngine::MakeRoom(BlockStore::Refusal refusal, TenantAccount* tenant,
                                           std::int64_t now_us) {
  // At its quota a tenant evicts its own; and memory belongs to tenants.
  const bool own = refusal == BlockStore::Refusal::kQuota || refusal == BlockStore::Refusal::kArena;
  return store_->EvictOne(own ? tenant : nullptr, nullptr, now_us);
}

bool LocalEngine::Keep(const KeyId& id) {
  const bool kept = store_->Keep(id);
  if (store_->bytes().above_high()) ScheduleEviction();
  return kept;
}

void LocalEngine::ScheduleEviction() {
  if (background_ == nullptr || evicting_.exchange(true)) return;
  // A full queue: the next Reserve above the watermark tries again, and inline eviction helps.
  if (!background_->Submit(leash_.Bind([this] { RunEviction(); }))) evicting_.store(false);
}

void LocalEngine::RunEviction() {
  ByteAccount& bytes = store_->bytes();
  SpillTarget* const target = target_.load();
  const std::int64_t now_us = store_->NowUs();
  bool more = false;
  bool waits = false;
  int refused_rounds = 0;
  for (int block = 0; bytes.above_low(); ++block) {
    more = block >= kBlocksAPass;  // others share the executor
    if (more) break;
    const BlockStore::Eviction eviction = store_->EvictOne(nullptr, target, now_us);
    if (eviction == BlockStore::Eviction::kNone) break;
    if (eviction == BlockStore::Eviction::kRefused && ++refused_rounds > kMaxRefusals) break;
    if (eviction != BlockStore::Eviction::kPaused) continue;
    paused_.store(true);
    // A block may have left before the flag was up; then nobody else will go on.
    waits = bytes.pending_spill() > 0;
    if (waits) break;
    paused_.store(false);
  }
  evicting_.store(false);
  // A block may have left before that; whoever took the flag down then found a pass still running.
  if (more || (waits && !paused_.load())) ScheduleEviction();
}

void LocalEngine::ScheduleReclaim(const std::string& tenant) {
  if (background_ == nullptr || reclaiming_.exchange(true)) return;
  const bool queued = background_->Submit(leash_.Bind([this, tenant] {
    store_->arena().Reclaim(tenant);
    reclaiming_.store(false);
  }));
  if (!queued) reclaiming_.store(false);
}

}  // namespace kvfabric
