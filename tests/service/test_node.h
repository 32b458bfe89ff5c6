#pragma once

// TestNode: the blocks of one agent in a test: an arena, one pool's engine, and a peer handler
// that serves it, leases not checked.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "agent/engine/cache_engine.h"
#include "agent/tier/dram_arena.h"
#include "common/checksum.h"
#include "common/identity.h"
#include "common/metrics.h"
#include "tests/service/tally.h"

namespace kvfabric {

inline NamespaceRef TestNamespace(const std::string& tenant = "blue") {
  auto ns = std::make_shared<Namespace>();
  ns->pool_uid = "p1";
  ns->tenant = tenant;
  ns->digest = MakeNamespaceDigest("p1", tenant, "model=m\n");
  return ns;
}

inline BlockHeader TestHeader(const std::string& key, const NamespaceRef& ns = TestNamespace()) {
  BlockHeader header;
  header.ns = ns;
  header.key = key;
  header.id = MakeKeyId(ns->digest, header.lane, key);
  header.slot = 7;
  return header;
}

inline std::string RandomBytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class TestNode : public PeerHandler {
 public:
  explicit TestNode(std::uint64_t arena_bytes = 64U << 20U) {
    auto arena_made = DramArena::Create({.bytes = arena_bytes});
    EXPECT_TRUE(arena_made.ok()) << arena_made.status().ToString();
    arena = std::move(*arena_made);
    CacheEngine::Options options;
    options.pool_uid = "p1";
    options.pool_name = "default/pool";
    options.capacity_bytes = arena_bytes / 2;
    CacheEngine::Environment environment;
    environment.arena = arena.get();
    environment.clock = &Clock::System();
    environment.background = &background;
    environment.metrics = &metrics;
    auto engine_made = CacheEngine::Create(options, environment);
    EXPECT_TRUE(engine_made.ok()) << engine_made.status().ToString();
    engine = std::move(*engine_made);
  }

  // Puts `bytes`; with a false checksum the block is a lie, as memory that went bad would be.
  PinnedBlock Put(BlockHeader header, const std::string& bytes) {
    header.length_bytes = bytes.size();
    header.checksum = BlockChecksum(AsBytes(bytes));
    auto reservation = engine->Reserve(header, BlockOrigin::kPut);
    EXPECT_TRUE(reservation.ok()) << reservation.status().ToString();
    const std::uint64_t sum = CopyAndChecksum(reservation->bytes(), AsBytes(bytes));
    auto block = std::move(*reservation).Commit(sum);
    EXPECT_TRUE(block.ok()) << block.status().ToString();
    return *block;
  }

  SessionId OnSessionOpen(const PeerIdentity& peer) override {
    last_peer = peer;
    sessions.Add();
    return 5;
  }
  void OnSessionClosed(SessionId) override { closed.Add(); }
  std::uint64_t MapEpoch(const std::string& pool_uid) const override {
    return pool_uid == "p1" ? 2 : 0;
  }
  KeepaliveState OnKeepalive(SessionId) override {
    keepalives.Add();
    KeepaliveState state;
    state.inflight_bytes = 99;
    return state;
  }
  Result<AnnounceReply> OnAnnounce(SessionId, const AnnounceRequest& request) override {
    AnnounceReply reply;
    reply.resync = request.sequence == 13;
    for (const DirectoryEntry& entry : request.added) reply.has_other_holder.push_back(entry.id);
    announced.Add();
    return reply;
  }
  void OnLocate(SessionId, LocateRequest request, Deadline, Completion<LocateReply> done) override {
    if (request.map_epoch == 1) {
      done(Aborted("map epoch 1 is older than 2"));
      return;
    }
    LocateReply reply;
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      reply.holders.emplace_back();
      for (std::size_t h = 0; h < i % 3; ++h) {
        reply.holders.back().push_back("node-" + std::to_string(h));
      }
    }
    done(std::move(reply));
  }
  Result<LeaseReply> OnLease(SessionId, const LeaseRequest& request) override {
    LeaseReply reply;
    for (const KeyId& id : request.ids) {
      const auto pinned = engine->PinById(id);
      reply.granted.push_back(pinned.has_value());
      reply.lengths.push_back(pinned ? pinned->header().length_bytes : 0);
    }
    reply.lease_id = 41;
    reply.lease = std::chrono::milliseconds(10'000);
    return reply;
  }
  void OnRelease(SessionId, const std::vector<std::uint64_t>& leases) override {
    released.Add(static_cast<int>(leases.size()));
  }
  Result<OfferReply> OnOffer(SessionId, const OfferRequest& request) override {
    OfferReply reply;
    for (const KeyId& id : request.ids) {
      reply.answers.push_back(engine->Contains(id) ? OfferAnswer::kHasIt : OfferAnswer::kPush);
    }
    return reply;
  }
  std::uint32_t OnDelete(SessionId, const DeleteAtPeerRequest& request) override {
    std::uint32_t deleted = 0;
    for (const KeyId& id : request.ids) deleted += engine->Delete(id) ? 1 : 0;
    return deleted;
  }
  std::string OnMapRequest(SessionId, const std::string& pool_uid) override {
    return "map of " + pool_uid;
  }
  std::optional<PinnedBlock> OnFetch(SessionId, const std::string&, std::uint64_t,
                                     const KeyId& id) override {
    return engine->PinById(id);
  }
  Result<Reservation> OnPush(SessionId, const std::string&, OfferReason,
                             BlockHeader header) override {
    return engine->Reserve(std::move(header), BlockOrigin::kReplica);
  }

  // Where fetched blocks go.
  FetchSink Sink() {
    return [this](const BlockHeader& header) {
      auto reservation = engine->Reserve(header, BlockOrigin::kReplica);
      return reservation.ok() ? std::move(*reservation) : Reservation();
    };
  }

  MetricsRegistry metrics;
  WorkerPool background{"background", 1, 1024};
  std::unique_ptr<DramArena> arena;
  std::unique_ptr<CacheEngine> engine;
  PeerIdentity last_peer;
  Tally sessions, closed, keepalives, announced, released;
};

// The result of an asynchronous call, waited for.
template <typename T>
class Waiter {
 public:
  std::function<void(Result<T>)> Completion() {
    return [this](Result<T> result) {
      const std::lock_guard<std::mutex> lock(mu_);
      EXPECT_FALSE(result_.has_value()) << "completed twice";
      result_.emplace(std::move(result));
      changed_.notify_all();
    };
  }
  Result<T> Wait(std::chrono::milliseconds within = std::chrono::milliseconds(10'000)) {
    std::unique_lock<std::mutex> lock(mu_);
    if (!changed_.wait_for(lock, within * TimeScale(), [&] { return result_.has_value(); })) {
      return DeadlineExceeded("test: no completion came");
    }
    return std::move(*result_);
  }
  bool done() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return result_.has_value();
  }

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::optional<Result<T>> result_;
};

}  // namespace kvfabric
