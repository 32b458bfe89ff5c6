#pragma once

// Fabric: what this node's clients can do, over local blocks and all peers. Services (local
// socket, gRPC, framed TCP) call it; they own connections, it owns sessions and leases.
//
// Owned by main; any thread may call. Calls never block: completions run exactly once, on any
// thread, by the deadline with what there is by then. A miss is never an error; Status says that
// the request itself was bad or the session unknown.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/block/block_header.h"
#include "agent/engine/cache_engine.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvfabric {

template <typename T>
using Completion = std::function<void(Result<T>)>;

// One client. Opened with the tenant that authentication gave; closing ends its leases.
using SessionId = std::uint64_t;

enum class MissReason : std::uint8_t { kNone, kNotFound, kLeaseBudget, kDeadline, kNoMap };

struct LookupArgs {
  NamespaceRef ns;
  std::vector<Lane> lanes;  // the answer is the minimum over them
  KeyRange range;
};
struct LookupAnswer {
  std::uint32_t hits = 0;   // Chain: contiguous yes from range.first, over all lanes
  std::vector<bool> found;  // Single: per key
  std::uint64_t lease_id = 0;
  std::chrono::milliseconds lease{0};
  std::uint32_t local = 0;
  std::uint32_t peer = 0;
  MissReason miss_reason = MissReason::kNone;
};

struct GetArgs {
  NamespaceRef ns;
  Lane lane;
  KeyRange range;
  std::uint64_t lease_id = 0;  // 0: takes its own, returned in the answer
};
struct GetAnswer {
  // One per key; Chain: empty pins from the first miss on. The pins also hang on the lease, so a
  // service that answers with a location may drop them once the lease id has been told.
  std::vector<PinnedBlock> blocks;
  std::vector<bool> from_peer;
  std::uint64_t lease_id = 0;
};

enum class PutStatus : std::uint8_t { kOk, kAlreadyExists, kNoSpace, kChecksumMismatch, kFailed };
struct PutItem {
  ByteSpan bytes;              // the caller's; must stay until the completion ran
  std::uint64_t checksum = 0;  // 0 = not given (local socket only)
  std::string metadata;
};
struct PutArgs {
  NamespaceRef ns;
  Lane lane;
  KeyRange range;
  std::vector<PutItem> items;  // one per key
};
struct PutAnswer {
  std::vector<PutStatus> status;
  std::vector<std::uint8_t> copies;  // holders known by the deadline, this node included
};

struct PoolStatAnswer {
  std::string pool_name;
  EngineStats engine;
  std::uint64_t map_epoch = 0;
  std::uint64_t leased_bytes = 0;
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual std::uint64_t boot_epoch() const = 0;
  // Interned namespace of a pool known here by "namespace/name"; NOT_FOUND when it is not.
  virtual Result<NamespaceRef> ResolveNamespace(const std::string& pool, const std::string& tenant,
                                                const std::string& fingerprint,
                                                NamespaceKind kind) = 0;
  virtual std::uint64_t map_epoch(const std::string& pool_uid) const = 0;

  virtual SessionId OpenSession(const std::string& tenant) = 0;
  virtual void CloseSession(SessionId session) = 0;

  virtual void Lookup(SessionId session, LookupArgs args, Deadline deadline,
                      Completion<LookupAnswer> done) = 0;
  virtual void Get(SessionId session, GetArgs args, Deadline deadline,
                   Completion<GetAnswer> done) = 0;
  virtual void Put(SessionId session, PutArgs args, Deadline deadline,
                   Completion<PutAnswer> done) = 0;
  virtual void Release(SessionId session, const std::vector<std::uint64_t>& lease_ids) = 0;
  // Renews for one lease time from now; false when it is gone.
  virtual bool Renew(SessionId session, std::uint64_t lease_id) = 0;
  virtual void Delete(SessionId session, GetArgs args, Deadline deadline,
                      Completion<std::uint32_t> done) = 0;
  // Pools of this session's tenant; all for the tenant `admin`.
  virtual std::vector<PoolStatAnswer> Stat(SessionId session) const = 0;
};

}  // namespace kvfabric
