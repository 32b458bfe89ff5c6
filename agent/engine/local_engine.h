#pragma once

// LocalEngine: the CacheEngine over this node's memory. Decides when to evict; BlockStore does it.
//
// Owned as its contract says. One eviction pass at a time runs on the background executor: it
// begins above the high watermark and goes on, a bounded number of blocks a task, down to the low
// one. It pauses when the spill queue is full and goes on when a block has left; only above the
// high watermark it drops instead of waiting. Reserve evicts inline, without spilling, when quota,
// capacity or memory is used up right now.

#include <atomic>
#include <memory>
#include <string>

#include "agent/engine/block_store.h"
#include "agent/engine/cache_engine.h"
#include "agent/tier/dram_arena.h"
#include "common/leash.h"

namespace kvfabric {

class LocalEngine final : public CacheEngine, public ArenaUser {
 public:
  // Steps of one Reserve, each at most one block: what bounds its time.
  static constexpr int kMaxInlineEvictions = 1024;
  // Evicting does not free the slot size that is wanted, or not soon; then memory is reclaimed.
  static constexpr int kMaxEvictionsForMemory = 16;
  // Rounds over pinned leaves before a Reserve or a pass gives up.
  static constexpr int kMaxRefusals = 64;
  static constexpr int kBlocksAPass = 256;
  // One line in that time for blocks that can never be put.
  static constexpr std::int64_t kRefusalLogUs = 1'000'000;

  LocalEngine(Options options, Environment environment, std::shared_ptr<BlockStore> store);
  ~LocalEngine() override;
  LocalEngine(const LocalEngine&) = delete;  // tasks and the arena point to it
  LocalEngine& operator=(const LocalEngine&) = delete;

  static Status Validate(const Options& options, const Environment& environment);

  // CacheEngine
  void SetObserver(BlockObserver* observer) override { store_->SetObserver(observer); }
  void SetSpillTarget(SpillTarget* target) override { target_.store(target); }
  Status Reconfigure(const Options& options) override;
  Result<Reservation> Reserve(BlockHeader header, BlockOrigin origin) override;
  std::optional<PinnedBlock> Pin(const KeyId& id, std::string_view key, Lane lane) override {
    return store_->Pin(id, &key, lane);
  }
  std::optional<PinnedBlock> PinById(const KeyId& id) override {
    return store_->Pin(id, nullptr, {});
  }
  bool Contains(const KeyId& id) const override { return store_->Contains(id); }
  bool ContainsKept(const KeyId& id) const override { return store_->ContainsKept(id); }
  void Touch(const std::vector<KeyId>& ids) override { store_->Touch(ids); }
  bool Delete(const KeyId& id) override { return store_->Delete(id); }
  void SetHasOtherHolder(const KeyId& id, bool value) override {
    store_->SetHasOtherHolder(id, value);
  }
  bool Keep(const KeyId& id) override;
  std::optional<Clock::Duration> ColdestAge() const override { return store_->ColdestAge(false); }
  std::optional<Clock::Duration> ColdestSpillableAge() const override {
    return store_->ColdestAge(true);
  }
  std::vector<BlockHeader> Snapshot(const std::vector<std::uint32_t>& slots) const override {
    return store_->Snapshot(slots);
  }
  EngineStats Stats() const override { return store_->Stats(); }
  void Clear() override { store_->Clear(); }

  // ArenaUser
  void AddWarmth(std::map<std::uint64_t, Warmth>& by_memfd) const override {
    store_->AddWarmth(by_memfd);
  }
  void EmptyMemfd(std::uint64_t memfd_id) override { store_->EmptyMemfd(memfd_id); }

 private:
  BlockStore::Eviction MakeRoom(BlockStore::Refusal refusal, TenantAccount* tenant,
                                std::int64_t now_us);
  void LogRefusal(const Status& why);
  void ScheduleEviction();
  void RunEviction();
  void ScheduleReclaim(const std::string& tenant);

  const std::string pool_uid_;
  const std::string pool_name_;
  const std::string eviction_policy_;
  const std::shared_ptr<BlockStore> store_;
  Executor* const background_;  // borrowed; nullptr = inline eviction only
  std::atomic<SpillTarget*> target_{nullptr};
  std::atomic<bool> evicting_{false};    // a pass is queued or runs
  std::atomic<bool> paused_{false};      // a pass waits for the spill queue
  std::atomic<bool> reclaiming_{false};  // a reclaim is queued or runs
  std::atomic<std::int64_t> refusal_logged_us_{0};
  Leash leash_;
};

}  // namespace kvfabric
