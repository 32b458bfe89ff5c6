#pragma once

// FakeFabric: one node's Fabric without peers: a real arena and engine, leases in a plain map that
// never run out, and gates that let a test hold an answer or a put half way. Any thread.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/cluster/fabric.h"
#include "agent/engine/cache_engine.h"
#include "agent/tier/dram_arena.h"
#include "common/checksum.h"
#include "common/identity.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "tests/fakes/fake_sessions.h"

namespace kvfabric {

class FakeFabric final : public Fabric {
 public:
  static constexpr std::uint64_t kBootEpoch = 77;
  static constexpr std::uint64_t kMapEpoch = 5;
  static constexpr const char* kPool = "default/pool";

  explicit FakeFabric(std::uint64_t arena_bytes = 32U << 20U)
      : background_("fake-background", 1, 1'024) {
    auto arena_made = DramArena::Create({.bytes = arena_bytes});
    KVF_CHECK(arena_made.ok(), "cannot make an arena");
    arena_ = std::move(*arena_made);
    CacheEngine::Options options;
    options.pool_uid = "pool-uid";
    options.pool_name = kPool;
    options.capacity_bytes = arena_bytes;
    CacheEngine::Environment environment;
    environment.arena = arena_.get();
    environment.clock = &Clock::System();
    environment.background = &background_;
    environment.metrics = &metrics_;
    auto engine_made = CacheEngine::Create(options, environment);
    KVF_CHECK(engine_made.ok(), "cannot make an engine");
    engine_ = std::move(*engine_made);
  }
  ~FakeFabric() override { AnswerHeld(); }

  DramArena& arena() { return *arena_; }
  CacheEngine& engine() { return *engine_; }

  // From now on look-ups and gets are answered only by AnswerHeld.
  void Hold() {
    MutexLock lock(mu_);
    holding_ = true;
  }
  std::size_t held() const {
    MutexLock lock(mu_);
    return held_.size();
  }
  void AnswerHeld() {
    std::vector<std::function<void()>> held;
    {
      MutexLock lock(mu_);
      holding_ = false;
      held.swap(held_);
    }
    for (const auto& answer : held) answer();
  }
  // Runs inside Put, when the bytes are in place and before Commit. Set before use.
  std::function<void()> before_commit;

  std::size_t open_sessions() const { return sessions_.open(); }
  std::size_t leases() const { return sessions_.leases(); }

  std::uint64_t boot_epoch() const override { return kBootEpoch; }
  std::uint64_t map_epoch(const std::string& /*pool_uid*/) const override { return kMapEpoch; }
  Result<NamespaceRef> ResolveNamespace(const std::string& pool, const std::string& tenant,
                                        const std::string& fingerprint,
                                        NamespaceKind kind) override {
    if (pool != kPool) return NotFound("pool " + pool + ": not known here");
    auto ns = std::make_shared<Namespace>();
    ns->pool_uid = "pool-uid";
    ns->tenant = tenant;
    ns->kind = kind;
    ns->digest = MakeNamespaceDigest(ns->pool_uid, tenant, fingerprint);
    return NamespaceRef(std::move(ns));
  }

  SessionId OpenSession(const std::string& /*tenant*/) override { return sessions_.Open(); }
  void CloseSession(SessionId session) override { sessions_.Close(session); }

  void Lookup(SessionId session, LookupArgs args, Deadline /*deadline*/,
              Completion<LookupAnswer> done) override {
    Answer([this, session, args = std::move(args), done = std::move(done)] {
      LookupAnswer answer;
      std::vector<PinnedBlock> pins;
      bool gap = false;
      for (const std::string& key : args.range.keys) {
        std::vector<PinnedBlock> of_key;
        for (const Lane lane : args.lanes) {
          if (auto pin = engine_->Pin(MakeKeyId(args.ns->digest, lane, key), key, lane)) {
            of_key.push_back(std::move(*pin));
          }
        }
        const bool yes = of_key.size() == args.lanes.size();
        if (args.ns->kind == NamespaceKind::kSingle) {
          answer.found.push_back(yes);
        } else {
          gap = gap || !yes;
          if (gap) break;
        }
        if (!yes) continue;
        ++answer.hits;
        for (PinnedBlock& pin : of_key) pins.push_back(std::move(pin));
      }
      answer.local = answer.hits;
      if (answer.hits == 0) answer.miss_reason = MissReason::kNotFound;
      if (answer.hits > 0) answer.lease_id = sessions_.Grant(session, std::move(pins));
      answer.lease = std::chrono::milliseconds(10'000);
      done(std::move(answer));
    });
  }

  void Get(SessionId session, GetArgs args, Deadline /*deadline*/,
           Completion<GetAnswer> done) override {
    Answer([this, session, args = std::move(args), done = std::move(done)] {
      GetAnswer answer;
      bool gap = false;
      for (const std::string& key : args.range.keys) {
        std::optional<PinnedBlock> pin;
        if (!gap) pin = engine_->Pin(MakeKeyId(args.ns->digest, args.lane, key), key, args.lane);
        gap = gap || (!pin && args.ns->kind == NamespaceKind::kChain);
        answer.blocks.push_back(pin ? std::move(*pin) : PinnedBlock());
        answer.from_peer.push_back(false);
      }
      const bool leased = sessions_.Owns(session, args.lease_id);
      answer.lease_id = leased ? args.lease_id : sessions_.Grant(session, answer.blocks);
      done(std::move(answer));
    });
  }

  void Put(SessionId session, PutArgs args, Deadline /*deadline*/,
           Completion<PutAnswer> done) override {
    if (!sessions_.Has(session)) {
      done(FailedPrecondition("no such session"));
      return;
    }
    PutAnswer answer;
    for (std::size_t i = 0; i < args.range.keys.size(); ++i) {
      answer.status.push_back(PutOne(args, i));
      answer.copies.push_back(answer.status.back() == PutStatus::kOk ? 1 : 0);
    }
    done(std::move(answer));
  }

  void Release(SessionId session, const std::vector<std::uint64_t>& lease_ids) override {
    sessions_.Release(session, lease_ids);
  }
  bool Renew(SessionId session, std::uint64_t lease_id) override {
    return sessions_.Owns(session, lease_id);
  }
  void Delete(SessionId /*session*/, GetArgs args, Deadline /*deadline*/,
              Completion<std::uint32_t> done) override {
    std::uint32_t deleted = 0;
    for (const std::string& key : args.range.keys) {
      if (engine_->Delete(MakeKeyId(args.ns->digest, args.lane, key))) ++deleted;
    }
    done(deleted);
  }
  std::vector<PoolStatAnswer> Stat(SessionId /*session*/) const override {
    return {{kPool, engine_->Stats(), kMapEpoch, 0}};
  }

 private:
  void Answer(std::function<void()> answer) {
    {
      MutexLock lock(mu_);
      if (holding_) {
        held_.push_back(std::move(answer));
        return;
      }
    }
    answer();
  }

  PutStatus PutOne(const PutArgs& args, std::size_t i) {
    BlockHeader header;
    header.ns = args.ns;
    header.lane = args.lane;
    header.key = args.range.keys[i];
    header.id = MakeKeyId(args.ns->digest, args.lane, header.key);
    header.depth = args.range.first + static_cast<std::uint32_t>(i);
    header.length_bytes = args.items[i].bytes.size();
    header.checksum = args.items[i].checksum;
    header.metadata = args.items[i].metadata;
    auto reservation = engine_->Reserve(header, BlockOrigin::kPut);
    if (reservation.status().code() == StatusCode::kAlreadyExists) return PutStatus::kAlreadyExists;
    if (reservation.status().code() == StatusCode::kResourceExhausted) return PutStatus::kNoSpace;
    if (!reservation.ok()) return PutStatus::kFailed;
    const std::uint64_t sum = CopyAndChecksum(reservation->bytes(), args.items[i].bytes);
    if (before_commit) before_commit();
    const auto committed = std::move(*reservation).Commit(sum);
    if (committed.ok()) return PutStatus::kOk;
    return committed.status().code() == StatusCode::kDataLoss ? PutStatus::kChecksumMismatch
                                                              : PutStatus::kAlreadyExists;
  }

  MetricsRegistry metrics_;
  WorkerPool background_;
  std::unique_ptr<DramArena> arena_;
  std::unique_ptr<CacheEngine> engine_;
  FakeSessions sessions_;  // after the engine: pins go first

  mutable Mutex mu_;
  bool holding_ GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> held_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
