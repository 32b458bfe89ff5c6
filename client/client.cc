#include "client/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/connection_keeper.h"
#include "client/session.h"
#include "common/checksum.h"
#include "transport/event_loop.h"
#include "transport/local_messages.h"

namespace kvfabric {

namespace {

constexpr Lane kDefaultLane{};

std::span<const Lane> OrDefault(std::span<const Lane> lanes) {
  return lanes.empty() ? std::span<const Lane>(&kDefaultLane, 1) : lanes;
}

Miss FromWire(wire::LookupMiss reason) {
  switch (reason) {
    case wire::LookupMiss::kNone:
      return Miss::kNone;
    case wire::LookupMiss::kNotFound:
      return Miss::kNotFound;
    case wire::LookupMiss::kLeaseBudget:
      return Miss::kLeaseBudget;
    case wire::LookupMiss::kDeadline:
      return Miss::kDeadline;
    case wire::LookupMiss::kNoMap:
      return Miss::kNoMap;
  }
  return Miss::kNotFound;
}

PutResult FromWire(wire::PutOutcome status) {
  switch (status) {
    case wire::PutOutcome::kOk:
      return PutResult::kOk;
    case wire::PutOutcome::kAlreadyExists:
      return PutResult::kAlreadyExists;
    case wire::PutOutcome::kNoSpace:
      return PutResult::kNoSpace;
    case wire::PutOutcome::kChecksumMismatch:
      return PutResult::kChecksumMismatch;
    case wire::PutOutcome::kFailed:
      return PutResult::kFailed;
  }
  return PutResult::kFailed;
}

Deadline After(Client::Budget budget) { return Deadline::After(Clock::System(), budget); }

// Blocks may not be split over requests by bytes alone: a batch also has a limit of keys.
constexpr std::size_t kMaxBatch = wire::kMaxKeysPerRequest;
constexpr std::uint64_t kAlign = 256;

}  // namespace

struct Lease::State {
  std::shared_ptr<Session> session;
  std::uint64_t id = 0;
  ~State() { session->ReleaseLease(id); }
};

bool BlockView::Verify() const { return BlockChecksum(bytes_) == checksum_; }

Client::Client() = default;

Result<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  if (options.endpoints.empty()) {
    return InvalidArgument(
        "client: no endpoint: give at least one, e.g. unix:/run/kvfabric/agent.sock");
  }
  std::vector<SocketAddress> addresses;
  for (const std::string& endpoint : options.endpoints) {
    KVF_ASSIGN_OR_RETURN(SocketAddress address, SocketAddress::Resolve(endpoint));
    addresses.push_back(std::move(address));
  }
  Session::Options base;
  base.hello.token = std::move(options.token);
  base.hello.pool = std::move(options.pool);
  base.hello.fingerprint = std::move(options.fingerprint);
  base.hello.kind = options.kind;
  base.connect_timeout = options.connect_timeout;
  base.staging_bytes = base.hello.pool.empty() ? 0 : options.staging_bytes;
  std::unique_ptr<Client> client(new Client());
  KVF_ASSIGN_OR_RETURN(client->loop_, EventLoop::Create({.name = "kvf-client"}));
  client->keeper_ =
      std::make_shared<ConnectionKeeper>(*client->loop_, std::move(addresses), std::move(base));
  const auto keeper = client->keeper_;
  static_cast<void>(client->loop_->Submit([keeper] { keeper->Start(); }));
  return client;
}

Client::~Client() {
  if (!loop_) return;
  const auto keeper = keeper_;
  loop_->RunSync([keeper] { keeper->Stop(); });
  loop_->Stop();
}

Status Client::WaitConnected(Budget budget) const {
  return keeper_->WaitForCurrent(After(budget)) ? Status::Ok() : keeper_->status();
}

std::shared_ptr<Session> Client::SessionOf(const Lease& lease) const {
  if (!lease) return keeper_->Current();
  return lease.state_->session->alive() ? lease.state_->session : nullptr;
}

LookupOutcome Client::Lookup(const Chain& chain, std::uint32_t first, std::uint32_t count,
                             std::span<const Lane> lanes, Budget budget) {
  LookupOutcome outcome;
  std::vector<std::string_view> views;
  const wire::KeyRangeView range = chain.Range(first, count, views);
  counts_.lookups += views.size();
  outcome.miss = Miss::kNotFound;
  if (views.empty()) return outcome;
  const auto session = keeper_->Current();
  if (!session) {
    counts_.missed_no_agent += views.size();
    outcome.miss = Miss::kNoAgent;
    return outcome;
  }
  outcome.endpoint = session->endpoint_index();
  CallReply reply = session->Call(FrameOp::kLookup, wire::EncodeLookup(OrDefault(lanes), range),
                                  After(budget), {.keep = nullptr, .gives_lease = true});
  if (!reply.status.ok() || reply.bodies.empty()) {
    outcome.miss =
        reply.status.code() == StatusCode::kDeadlineExceeded ? Miss::kDeadline : Miss::kNoAgent;
    return outcome;
  }
  auto answer = wire::Decode<wire::LookupReply>(AsBytes(reply.bodies.front()));
  if (!answer.ok()) return outcome;
  if (answer->lease_id != 0) {
    auto state = std::make_shared<Lease::State>();
    state->session = session;
    state->id = answer->lease_id;
    outcome.lease = Lease(std::move(state));
  }
  outcome.hits = std::min(answer->hits, static_cast<std::uint32_t>(views.size()));
  outcome.found = std::move(answer->found);
  outcome.local = answer->local;
  outcome.peer = answer->peer;
  outcome.miss = FromWire(answer->miss_reason);
  return outcome;
}

GetOutcome Client::Get(const Lease& lease, const Chain& chain, std::uint32_t first,
                       std::uint32_t count, Lane lane, Budget budget) {
  GetOutcome outcome;
  std::vector<std::string_view> views;
  const wire::KeyRangeView range = chain.Range(first, count, views);
  outcome.blocks.resize(views.size());
  counts_.gets += views.size();
  if (views.empty()) return outcome;
  const auto session = SessionOf(lease);
  if (!session) {
    counts_.missed_no_agent += views.size();
    return outcome;
  }
  outcome.endpoint = session->endpoint_index();
  auto reply = std::make_shared<CallReply>(
      session->Call(FrameOp::kGet, wire::EncodeGet(lease ? lease.state_->id : 0, lane, range),
                    After(budget), {.keep = nullptr, .gives_lease = !lease}));
  if (!reply->status.ok()) return outcome;
  Lease held = lease;
  std::size_t inline_index = 0;
  for (const std::string& body : reply->bodies) {
    auto part = wire::Decode<wire::GetReply>(AsBytes(body));
    if (!part.ok()) return outcome;
    if (!held && part->lease_id != 0) {
      auto state = std::make_shared<Lease::State>();
      state->session = session;
      state->id = part->lease_id;
      held = Lease(std::move(state));
    }
    for (std::size_t i = 0; i < part->entries.size(); ++i) {
      wire::GetEntry& entry = part->entries[i];
      const std::size_t index = part->first_index + i;
      BlockView view;
      view.checksum_ = entry.checksum;
      view.metadata_ = std::move(entry.metadata);
      view.from_peer_ = entry.from_peer;
      view.lease_ = held;
      if (entry.place == wire::GetPlace::kMemfd) {
        const auto mapping = session->memory().Find(entry.memfd_id);
        if (!mapping) continue;
        view.bytes_ = mapping->At(entry.offset, entry.length);
        if (view.bytes_.size() != entry.length) continue;
        view.keep_ = mapping;
      } else if (entry.place == wire::GetPlace::kInline) {
        if (inline_index >= reply->inline_blocks.size()) return outcome;
        const InlineBlock& block = reply->inline_blocks[inline_index++];
        if (!block.intact) {
          ++counts_.corrupt;
          continue;
        }
        view.bytes_ = {block.bytes.get(), block.size};
        view.keep_ = reply;
      } else {
        continue;
      }
      if (index < outcome.blocks.size()) outcome.blocks[index] = std::move(view);
    }
  }
  return outcome;
}

std::vector<bool> Client::Read(const Lease& lease, const Chain& chain, std::uint32_t first,
                               std::span<const MutableByteSpan> into, Lane lane, Budget budget) {
  std::vector<bool> read(into.size(), false);
  const GetOutcome got =
      Get(lease, chain, first, static_cast<std::uint32_t>(into.size()), lane, budget);
  for (std::size_t i = 0; i < got.blocks.size(); ++i) {
    if (!got.blocks[i] || got.blocks[i]->bytes().size() != into[i].size()) continue;
    read[i] = CopyAndChecksum(into[i], got.blocks[i]->bytes()) == got.blocks[i]->checksum();
    if (!read[i]) ++counts_.corrupt;
  }
  return read;
}

PutOutcome Client::Put(const Chain& chain, std::uint32_t first, std::span<const PutBlock> blocks,
                       Lane lane, Budget budget) {
  PutOutcome outcome;
  counts_.puts += blocks.size();
  const auto session = keeper_->Current();
  if (session && first <= chain.size() && blocks.size() <= chain.size() - first) {
    outcome = session->staging() ? PutStaged(*session, chain, first, blocks, lane, budget)
                                 : PutInline(*session, chain, first, blocks, lane, budget);
    outcome.endpoint = session->endpoint_index();
  }
  outcome.status.resize(blocks.size(), PutResult::kDropped);
  outcome.copies.resize(blocks.size(), 0);
  counts_.puts_dropped += static_cast<std::uint64_t>(
      std::count(outcome.status.begin(), outcome.status.end(), PutResult::kDropped));
  return outcome;
}

PutOutcome Client::PutStaged(Session& session, const Chain& chain, std::uint32_t first,
                             std::span<const PutBlock> blocks, Lane lane, Budget budget) {
  PutOutcome outcome;
  const Deadline deadline = After(budget);
  const std::uint64_t most = session.staging()->size_bytes() / 2;
  std::size_t at = 0;
  while (at < blocks.size()) {
    std::vector<wire::PutEntry> entries;
    std::uint64_t bytes = 0;
    while (at + entries.size() < blocks.size() && entries.size() < kMaxBatch) {
      const PutBlock& block = blocks[at + entries.size()];
      const std::uint64_t next = (block.bytes.size() + kAlign - 1) / kAlign * kAlign;
      if (!entries.empty() && bytes + next > most) break;
      entries.push_back({bytes, block.bytes.size(), 0, std::string(block.metadata)});
      bytes += next;
    }
    const auto region = session.staging()->Allocate(bytes, deadline);
    if (!region) break;  // no room in time: the rest is dropped
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const ByteSpan from = blocks[at + i].bytes;
      if (!from.empty()) {
        std::memcpy(region->bytes().data() + entries[i].offset, from.data(), from.size());
      }
      entries[i].offset += region->offset();
    }
    std::vector<std::string_view> views;
    const auto depth = static_cast<std::uint32_t>(first + at);
    const auto range = chain.Range(depth, static_cast<std::uint32_t>(entries.size()), views);
    const CallReply reply = session.Call(FrameOp::kPut, wire::EncodePut(lane, range, entries),
                                         deadline, {.keep = region, .gives_lease = false});
    outcome.status.resize(at + entries.size(), PutResult::kDropped);
    outcome.copies.resize(at + entries.size(), 0);
    if (reply.status.ok() && !reply.bodies.empty()) {
      const auto answer = wire::Decode<wire::PutReply>(AsBytes(reply.bodies.front()));
      for (std::size_t i = 0; answer.ok() && i < entries.size(); ++i) {
        if (i < answer->status.size()) outcome.status[at + i] = FromWire(answer->status[i]);
        if (i < answer->copies.size()) outcome.copies[at + i] = answer->copies[i];
      }
    } else if (reply.status.code() == StatusCode::kInvalidArgument) {
      std::fill_n(outcome.status.begin() + static_cast<std::ptrdiff_t>(at), entries.size(),
                  PutResult::kFailed);
    }
    at += entries.size();
  }
  return outcome;
}

PutOutcome Client::PutInline(Session& session, const Chain& chain, std::uint32_t first,
                             std::span<const PutBlock> blocks, Lane lane, Budget budget) {
  PutOutcome outcome;
  const Deadline deadline = After(budget);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<std::string_view> views;
    const auto range = chain.Range(static_cast<std::uint32_t>(first + i), 1, views);
    const CallReply reply = session.CallWithPayload(
        FrameOp::kPutInline, wire::EncodePutInline(lane, range, blocks[i].metadata),
        blocks[i].bytes, BlockChecksum(blocks[i].bytes), deadline);
    PutResult status = PutResult::kDropped;
    std::uint8_t copies = 0;
    if (reply.status.ok() && !reply.bodies.empty()) {
      const auto answer = wire::Decode<wire::PutReply>(AsBytes(reply.bodies.front()));
      if (answer.ok() && answer->status.size() == 1) {
        status = FromWire(answer->status.front());
        if (!answer->copies.empty()) copies = answer->copies.front();
      }
    } else if (reply.status.code() == StatusCode::kInvalidArgument) {
      status = PutResult::kFailed;
    }
    outcome.status.push_back(status);
    outcome.copies.push_back(copies);
    if (deadline.Passed(Clock::System())) break;
  }
  return outcome;
}

std::uint32_t Client::Delete(const Chain& chain, std::uint32_t first, std::uint32_t count,
                             Lane lane, Budget budget) {
  std::vector<std::string_view> views;
  const auto range = chain.Range(first, count, views);
  const auto session = keeper_->Current();
  if (!session || views.empty()) return 0;
  const CallReply reply =
      session->Call(FrameOp::kDelete, wire::EncodeDelete(lane, range), After(budget));
  if (!reply.status.ok() || reply.bodies.empty()) return 0;
  const auto answer = wire::Decode<wire::DeleteReply>(AsBytes(reply.bodies.front()));
  return answer.ok() ? answer->deleted : 0;
}

bool Client::Renew(const Lease& lease, Budget budget) {
  const auto session = lease ? SessionOf(lease) : nullptr;
  if (!session) return false;
  const CallReply reply = session->Call(
      FrameOp::kRenew, wire::Encode(wire::RenewRequest{lease.state_->id}), After(budget));
  if (!reply.status.ok() || reply.bodies.empty()) return false;
  const auto answer = wire::Decode<wire::RenewReply>(AsBytes(reply.bodies.front()));
  return answer.ok() && answer->renewed;
}

Result<std::vector<PoolUsage>> Client::Stat(Budget budget) {
  const auto session = keeper_->WaitForCurrent(After(budget));
  if (!session) return keeper_->status();
  const CallReply reply = session->Call(FrameOp::kStat, "", After(budget));
  if (!reply.status.ok()) return reply.status;
  if (reply.bodies.empty()) return Internal("STAT: empty answer");
  KVF_ASSIGN_OR_RETURN(auto answer, wire::Decode<wire::StatReply>(AsBytes(reply.bodies.front())));
  std::vector<PoolUsage> pools;
  for (wire::PoolStat& pool : answer.pools) {
    pools.push_back({std::move(pool.pool), pool.capacity_bytes, pool.used_bytes, pool.blocks,
                     pool.leased_bytes, pool.map_epoch, std::move(pool.counters)});
  }
  return pools;
}

std::uint64_t Client::boot_epoch() const {
  const auto session = keeper_->Current();
  return session ? session->boot_epoch() : 0;
}

std::uint64_t Client::map_epoch() const {
  const auto session = keeper_->Current();
  return session ? session->map_epoch() : 0;
}

ClientCounters Client::counters() const {
  ClientCounters out;
  out.lookups = counts_.lookups;
  out.gets = counts_.gets;
  out.puts = counts_.puts;
  out.missed_no_agent = counts_.missed_no_agent;
  out.puts_dropped = counts_.puts_dropped;
  out.corrupt = counts_.corrupt;
  out.connects = keeper_->connects();
  return out;
}

}  // namespace kvfabric
