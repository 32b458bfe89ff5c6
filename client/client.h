#pragma once

// Client: an engine's way into the fabric: one agent at a time, never a route of its own.
//
// Fails open: without an agent a look-up and a read are misses and a put is dropped, all counted,
// none an error; the next endpoint of the list is used within 2 s and an earlier one again when it
// is back. Any thread may call any method; calls block until answered or their budget is over and
// then return what there is. Every byte that is handed out by Read was verified against the
// checksum of the PUT; in-place views are verified by BlockView::Verify. Calls of more keys than
// one request can name become several, all within the budget. Leases and views may outlive the
// client; calls that are under way when it goes return what they have, and it waits for them.
//
//   auto client = Client::Create({.endpoints = {"unix:/run/kvfabric/agent.sock"}, ...});
//   auto found = (*client)->Lookup(chain, 0, chain.size(), {}, 50ms);
//   auto got = (*client)->Get(found.lease, chain, 0, found.hits, {}, 50ms);

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/call_gate.h"
#include "client/chain.h"
#include "common/block_key.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvfabric {

class ConnectionKeeper;
class EventLoop;
class LoopRef;
class Session;
struct CallReply;
struct InlineBlock;

struct ClientOptions {
  std::vector<std::string> endpoints;  // `unix:/path` or `tcp:host:port`, in order of preference
  std::string token;
  std::string pool;         // "namespace/name"; empty = administration only (Stat)
  std::string fingerprint;  // EncodeFingerprint
  NamespaceKind kind = NamespaceKind::kChain;
  std::chrono::milliseconds connect_timeout{200};
  // Blocks on their way to the agent; larger blocks cannot be put.
  std::uint64_t staging_bytes = std::uint64_t{64} << 20U;
};

// What a look-up pinned. Copies share it; the last one to go releases it. Ends early only with its
// session, and then reads are misses.
class Lease {
 public:
  Lease() = default;
  explicit operator bool() const { return state_ != nullptr; }
  void Release() { state_.reset(); }

 private:
  friend class Client;
  struct State;
  explicit Lease(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// kNoAgent: none there, or none that could answer. kRefused: the request is not one that an agent
// takes (more than 64 lanes, or what it answers INVALID_ARGUMENT to): asking again is of no use.
enum class Miss : std::uint8_t {
  kNone,
  kNotFound,
  kLeaseBudget,
  kDeadline,
  kNoMap,
  kNoAgent,
  kRefused
};

struct LookupOutcome {
  std::uint32_t hits = 0;   // Chain: contiguous from the first key asked for, minimum over lanes
  std::vector<bool> found;  // Single: per key
  std::uint32_t local = 0;  // of the yes, at this agent
  std::uint32_t peer = 0;
  Miss miss = Miss::kNone;
  Lease lease;                          // empty when nothing was found
  std::optional<std::size_t> endpoint;  // index of the endpoint that answered
};

// A block in place: in the agent's memory, mapped read-only, or in the reply's. Readable while the
// view lives, provided its lease does.
class BlockView {
 public:
  ByteSpan bytes() const { return bytes_; }
  std::uint64_t checksum() const { return checksum_; }
  const std::string& metadata() const { return metadata_; }
  bool from_peer() const { return from_peer_; }
  // Whether the bytes are those that were put.
  bool Verify() const;

 private:
  friend class Client;
  ByteSpan bytes_;
  std::uint64_t checksum_ = 0;
  std::string metadata_;
  bool from_peer_ = false;
  std::shared_ptr<const void> keep_;  // mapping or reply
  Lease lease_;
};

struct GetOutcome {
  std::vector<std::optional<BlockView>> blocks;  // one per key; nullopt = miss
  std::optional<std::size_t> endpoint;
};

struct PutBlock {
  ByteSpan bytes;
  std::string_view metadata;
};
// kFailed: a block that cannot be put: empty, larger than the staging memory (over TCP also than
// 64 MiB), larger than the agent's memory is cut (a sixteenth of arenaBytes; its log says so), or
// with more than 4 KiB of metadata; or the agent did not come to it by the deadline. kDropped: no
// agent, or no answer by the deadline.
enum class PutResult : std::uint8_t {
  kOk,
  kAlreadyExists,
  kNoSpace,
  kChecksumMismatch,
  kFailed,
  kDropped
};
struct PutOutcome {
  std::vector<PutResult> status;
  std::vector<std::uint8_t> copies;
  std::optional<std::size_t> endpoint;
};

struct ClientCounters {
  std::uint64_t lookups = 0, gets = 0, puts = 0;  // blocks
  std::uint64_t missed_no_agent = 0;              // blocks
  std::uint64_t missed_deadline = 0;              // blocks: no answer within the budget
  std::uint64_t missed_refused = 0;               // blocks: of requests as Miss::kRefused
  std::uint64_t puts_dropped = 0;                 // blocks
  std::uint64_t corrupt = 0;                      // blocks whose checksum failed here
  std::uint64_t connects = 0;
};

struct PoolUsage {
  std::string pool;
  std::uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0, leased_bytes = 0, map_epoch = 0;
  std::vector<std::pair<std::string, std::uint64_t>> counters;
};

class Client {
 public:
  using Budget = std::chrono::milliseconds;

  // INVALID_ARGUMENT for options that cannot work. Does not wait for an agent.
  static Result<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;  // owns a thread and connections
  Client& operator=(const Client&) = delete;

  // For tools: OK when connected by then, else why not.
  Status WaitConnected(Budget budget) const;

  // `lanes` empty = {0, shared}; at most 64.
  LookupOutcome Lookup(const Chain& chain, std::uint32_t first, std::uint32_t count,
                       std::span<const Lane> lanes, Budget budget);
  // In place. Without a lease the views carry one of their own.
  GetOutcome Get(const Lease& lease, const Chain& chain, std::uint32_t first, std::uint32_t count,
                 Lane lane, Budget budget);
  // Copies block first + i to into[i], verified; false = miss, corrupt, or another length.
  std::vector<bool> Read(const Lease& lease, const Chain& chain, std::uint32_t first,
                         std::span<const MutableByteSpan> into, Lane lane, Budget budget);
  // One block per key from `first` on.
  PutOutcome Put(const Chain& chain, std::uint32_t first, std::span<const PutBlock> blocks,
                 Lane lane, Budget budget);
  // Drops copies at known holders, best effort; how many keys had one.
  std::uint32_t Delete(const Chain& chain, std::uint32_t first, std::uint32_t count, Lane lane,
                       Budget budget);
  bool Renew(const Lease& lease, Budget budget);

  Result<std::vector<PoolUsage>> Stat(Budget budget);
  // Of the connected agent; 0 without one.
  std::uint64_t boot_epoch() const;
  std::uint64_t map_epoch() const;
  ClientCounters counters() const;

 private:
  struct Counts {
    std::atomic<std::uint64_t> lookups{0}, gets{0}, puts{0}, missed_no_agent{0}, missed_deadline{0},
        missed_refused{0}, puts_dropped{0}, corrupt{0};
  };
  // Consecutive keys that one GET names, under one lease.
  struct Slice {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint64_t lease_id = 0;
  };
  struct PutJob {
    const Chain& chain;
    std::uint32_t first = 0;
    std::span<const PutBlock> blocks;
    Lane lane;
    Deadline deadline;
  };

  explicit Client(NamespaceKind kind);
  static Deadline DeadlineOf(Budget budget);
  std::shared_ptr<Session> SessionOf(const Lease& lease) const;
  // Counts `blocks` that were missed because a call ended with `status`.
  Miss CountMissed(const Status& status, std::uint64_t blocks);
  static Slice NextSlice(const Lease& lease, const Chain& chain, std::uint32_t first,
                         std::uint32_t count);
  // `asked` = the lease that `request` names, which is `lease`'s; 0 = none.
  Status GetSlice(const std::shared_ptr<Session>& session, std::string request, Lease lease,
                  std::uint64_t asked, std::span<std::optional<BlockView>> into, Deadline deadline);
  // What `entry` shows; nullopt = a miss. `block` is its inline block, if it has one, in `reply`.
  std::optional<BlockView> ViewOf(const Session& session, wire::GetEntry entry,
                                  const InlineBlock* block,
                                  const std::shared_ptr<const CallReply>& reply);
  void PutStaged(Session& session, const PutJob& job, PutOutcome& outcome);
  void PutInline(Session& session, const PutJob& job, PutOutcome& outcome);

  const NamespaceKind kind_;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<LoopRef> ref_;
  std::shared_ptr<ConnectionKeeper> keeper_;
  Counts counts_;
  mutable CallGate gate_;
};

}  // namespace kvfabric
