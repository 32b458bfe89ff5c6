#pragma once

// What agents say to each other, as plain structs: the same for gRPC and for the in-memory link
// that lets all of agent/cluster run under TSan. Meaning and limits: api/kvfabric/v1/peer.proto.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/block/block_header.h"
#include "agent/engine/cache_engine.h"

namespace kvfabric {

// A peer's stable name and the run of it that we speak to.
struct PeerIdentity {
  std::string node_name;
  std::string agent_uid;
  std::uint64_t boot_epoch = 0;
};

struct PoolColdness {
  std::string pool_uid;
  std::chrono::microseconds coldest_age{0};
  std::uint64_t free_bytes = 0;
};

struct KeepaliveState {
  std::vector<PoolColdness> pools;
  std::uint64_t inflight_bytes = 0;
  bool draining = false;
};

struct DirectoryEntry {
  KeyId id;
  std::uint32_t slot = 0;
};

struct AnnounceRequest {
  std::string pool_uid;
  std::uint64_t map_epoch = 0;
  std::uint64_t sequence = 0;  // from 1, per (holder boot epoch, owner)
  std::vector<DirectoryEntry> added;
  std::vector<KeyId> removed;
  bool snapshot_begin = false;
  bool snapshot_end = false;
};
struct AnnounceReply {
  bool resync = false;
  std::vector<KeyId> has_other_holder;
};

struct LocateRequest {
  std::string pool_uid;
  std::uint64_t map_epoch = 0;
  std::vector<DirectoryEntry> keys;
  bool forwarded = false;
};
struct LocateReply {
  std::vector<std::vector<std::string>> holders;  // node names, per key
};

struct LeaseRequest {
  std::string pool_uid;
  std::vector<KeyId> ids;
};
struct LeaseReply {
  std::vector<bool> granted;
  std::uint64_t lease_id = 0;
  std::chrono::milliseconds lease{0};
  std::vector<std::uint64_t> lengths;
};

enum class OfferReason : std::uint8_t { kSpill, kReplica, kDrain };
enum class OfferAnswer : std::uint8_t { kNo = 0, kPush = 1, kHasIt = 2 };
struct OfferRequest {
  std::string pool_uid;
  OfferReason reason = OfferReason::kSpill;
  std::vector<KeyId> ids;
  std::vector<std::uint64_t> lengths;
  std::vector<std::chrono::microseconds> ages;
};
struct OfferReply {
  std::vector<OfferAnswer> answers;
};

struct DeleteAtPeerRequest {
  std::string pool_uid;
  std::vector<KeyId> ids;
};

// One block to fetch under a lease: the requester knows id, key and lane and compares them with
// what the holder's fetch header says.
struct FetchItem {
  KeyId id;
};

}  // namespace kvfabric
