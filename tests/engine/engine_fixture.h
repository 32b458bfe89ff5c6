#pragma once

// A CacheEngine over a small arena on a fake clock, and blocks whose bytes tell which key they
// belong to. One thread unless a test says otherwise.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/cache_engine.h"
#include "agent/tier/dram_arena.h"
#include "common/checksum.h"
#include "common/identity.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/manual_executor.h"

namespace kvfabric {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

inline NamespaceRef MakeNamespace(const std::string& tenant = "a",
                                  NamespaceKind kind = NamespaceKind::kChain,
                                  const std::string& pool_uid = "pool") {
  return std::make_shared<Namespace>(
      Namespace{.pool_uid = pool_uid,
                .tenant = tenant,
                .kind = kind,
                .digest = MakeNamespaceDigest(pool_uid, tenant, "model=m\n")});
}

inline KeyId IdOf(const NamespaceRef& ns, const std::string& key, Lane lane = {}) {
  return MakeKeyId(ns->digest, lane, key);
}

inline BlockHeader MakeHeader(const NamespaceRef& ns, const std::string& key,
                              std::uint64_t length_bytes, Lane lane = {}) {
  BlockHeader header;
  header.ns = ns;
  header.key = key;
  header.lane = lane;
  header.id = IdOf(ns, key, lane);
  header.length_bytes = length_bytes;
  return header;
}

// Block `depth` of a chain: key "NAME/DEPTH".
inline BlockHeader ChainHeader(const NamespaceRef& ns, const std::string& name, std::uint32_t depth,
                               std::uint64_t length_bytes, Lane lane = {}) {
  BlockHeader header = MakeHeader(ns, name + "/" + std::to_string(depth), length_bytes, lane);
  header.depth = depth;
  if (depth > 0) header.parent = IdOf(ns, name + "/" + std::to_string(depth - 1), lane);
  return header;
}

// The key, over and over, and a version that tells two writers apart.
inline void Fill(MutableByteSpan bytes, const std::string& key, std::uint64_t version) {
  const std::string pattern = key + "#" + std::to_string(version) + ";";
  for (std::size_t at = 0; at < bytes.size(); at += pattern.size()) {
    std::memcpy(&bytes[at], pattern.data(), std::min(pattern.size(), bytes.size() - at));
  }
}

inline bool HoldsBytesOf(ByteSpan bytes, const std::string& key, std::uint64_t version) {
  std::vector<std::byte> expected(bytes.size());
  Fill(expected, key, version);
  return std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

inline Result<PinnedBlock> PutBlock(CacheEngine& engine, BlockHeader header,
                                    BlockOrigin origin = BlockOrigin::kPut,
                                    std::uint64_t version = 0) {
  const std::string key = header.key;
  KVF_ASSIGN_OR_RETURN(Reservation reservation, engine.Reserve(std::move(header), origin));
  Fill(reservation.bytes(), key, version);
  const std::uint64_t checksum = BlockChecksum(reservation.bytes());
  return std::move(reservation).Commit(checksum);
}

struct EngineFixture {
  explicit EngineFixture(CacheEngine::Options options, std::uint64_t arena_bytes = 0) {
    if (arena_bytes == 0) arena_bytes = options.capacity_bytes * 5 / 4 + 4 * kMiB;
    arena = DramArena::Create({.bytes = arena_bytes, .clock = &clock}).value();
    engine = MakeEngine(std::move(options));
  }
  std::unique_ptr<CacheEngine> MakeEngine(CacheEngine::Options options) {
    return CacheEngine::Create(std::move(options), {.arena = arena.get(),
                                                    .clock = &clock,
                                                    .background = &background,
                                                    .metrics = nullptr})
        .value();
  }

  Status Put(BlockHeader header, BlockOrigin origin = BlockOrigin::kPut) {
    clock.Advance(std::chrono::microseconds(10));
    return PutBlock(*engine, std::move(header), origin).status();
  }
  Status PutChain(const NamespaceRef& ns, const std::string& name, std::uint32_t blocks,
                  std::uint64_t length_bytes) {
    for (std::uint32_t depth = 0; depth < blocks; ++depth) {
      KVF_RETURN_IF_ERROR(Put(ChainHeader(ns, name, depth, length_bytes)));
    }
    return Status::Ok();
  }
  bool Has(const BlockHeader& header) {
    const bool pinned = engine->Pin(header.id, header.key, header.lane).has_value();
    KVF_CHECK(pinned == engine->Contains(header.id), "exists and get disagree");
    return pinned;
  }
  // Blocks 0.. of a chain that are here, contiguous.
  std::uint32_t ChainHits(const NamespaceRef& ns, const std::string& name) {
    std::uint32_t hits = 0;
    while (Has(ChainHeader(ns, name, hits, 1))) ++hits;
    return hits;
  }

  FakeClock clock;
  ManualExecutor background;
  std::unique_ptr<DramArena> arena;
  std::unique_ptr<CacheEngine> engine;
};

inline CacheEngine::Options PoolOptions(std::uint64_t capacity_bytes) {
  CacheEngine::Options options;
  options.pool_uid = "pool";
  options.pool_name = "test/pool";
  options.capacity_bytes = capacity_bytes;
  return options;
}

}  // namespace kvfabric
