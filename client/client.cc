#include "client/client.h"

#include <algorithm>
#include <utility>

#include "client/connection_keeper.h"
#include "client/lease_state.h"
#include "client/loop_ref.h"
#include "client/session.h"
#include "common/checksum.h"
#include "transport/event_loop.h"

namespace kvfabric {

namespace {

constexpr Lane kDefaultLane{};
constexpr Client::Budget kMostBudget = std::chrono::hours(1);  // more would overflow the clock

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

Status TooLong(std::string_view what, std::size_t bytes, std::size_t limit) {
  return InvalidArgument("client: " + std::string(what) + ": " + std::to_string(bytes) +
                         " bytes (limit " + std::to_string(limit) + ")");
}

Status Validate(const ClientOptions& options) {
  if (options.endpoints.empty()) {
    return InvalidArgument(
        "client: no endpoint: give at least one, e.g. unix:/run/kvfabric/agent.sock");
  }
  if (options.token.size() > wire::kMaxTokenBytes) {
    return TooLong("token", options.token.size(), wire::kMaxTokenBytes);
  }
  if (options.pool.size() > kMaxKeyBytes) {
    return TooLong("pool", options.pool.size(), kMaxKeyBytes);
  }
  if (options.fingerprint.size() > wire::kMaxFingerprintBytes) {
    return TooLong("fingerprint", options.fingerprint.size(), wire::kMaxFingerprintBytes);
  }
  if (!options.pool.empty() && options.staging_bytes == 0) {
    return InvalidArgument("client: staging_bytes: 0 (must hold the largest block)");
  }
  if (options.connect_timeout <= std::chrono::milliseconds(0)) {
    return InvalidArgument("client: connect_timeout: must be above 0 ms");
  }
  return Status::Ok();
}

}  // namespace

bool BlockView::Verify() const { return BlockChecksum(bytes_) == checksum_; }

Client::Client(NamespaceKind kind) : kind_(kind) {}

Deadline Client::DeadlineOf(Budget budget) {
  return Deadline::After(Clock::System(), std::clamp(budget, Budget(0), kMostBudget));
}

Result<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  KVF_RETURN_IF_ERROR(Validate(options));
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
  std::unique_ptr<Client> client(new Client(options.kind));
  KVF_ASSIGN_OR_RETURN(client->loop_, EventLoop::Create({.name = "kvf-client"}));
  client->ref_ = std::make_shared<LoopRef>(*client->loop_);
  client->keeper_ = std::make_shared<ConnectionKeeper>(*client->loop_, client->ref_,
                                                       std::move(addresses), std::move(base));
  const auto keeper = client->keeper_;
  if (!client->loop_->Submit([keeper] { keeper->Start(); })) {
    return Internal("client: a fresh loop takes no task");
  }
  return client;
}

Client::~Client() {
  if (!ref_) return;
  const auto keeper = keeper_;
  loop_->RunSync([keeper] { keeper->Stop(); });
  loop_->Stop();  // closes every session, so that no call waits any more
  gate_.WaitUntilEmpty();
  ref_->Cut();
}

Status Client::WaitConnected(Budget budget) const {
  const CallGate::Pass pass(gate_);
  return keeper_->WaitForCurrent(DeadlineOf(budget)) ? Status::Ok() : keeper_->status();
}

std::shared_ptr<Session> Client::SessionOf(const Lease& lease) const {
  if (!lease) return keeper_->Current();
  return lease.state_->session->alive() ? lease.state_->session : nullptr;
}

Miss Client::CountMissed(const Status& status, std::uint64_t blocks) {
  if (status.code() == StatusCode::kDeadlineExceeded) {
    counts_.missed_deadline += blocks;
    return Miss::kDeadline;
  }
  if (status.code() == StatusCode::kInvalidArgument) {
    counts_.missed_refused += blocks;
    return Miss::kRefused;
  }
  counts_.missed_no_agent += blocks;
  return Miss::kNoAgent;
}

LookupOutcome Client::Lookup(const Chain& chain, std::uint32_t first, std::uint32_t count,
                             std::span<const Lane> lanes, Budget budget) {
  const CallGate::Pass pass(gate_);
  LookupOutcome outcome;
  first = std::min(first, chain.size());
  count = std::min(count, chain.size() - first);
  counts_.lookups += count;
  if (kind_ == NamespaceKind::kSingle) outcome.found.assign(count, false);
  if (lanes.empty()) lanes = {&kDefaultLane, 1};
  if (count == 0) {
    outcome.miss = Miss::kNotFound;
    return outcome;
  }
  if (lanes.size() > wire::kMaxLanesPerRequest) {
    outcome.miss = CountMissed(InvalidArgument("too many lanes"), count);
    return outcome;
  }
  const auto session = keeper_->Current();
  if (!session) {
    outcome.miss = CountMissed(Unavailable("no agent"), count);
    return outcome;
  }
  outcome.endpoint = session->endpoint_index();
  const Deadline deadline = DeadlineOf(budget);
  const auto state = std::make_shared<Lease::State>(session);
  std::vector<std::string_view> views;
  for (std::uint32_t done = 0; done < count;) {
    const std::uint32_t n = chain.Fitting(first + done, count - done, lanes.size());
    const wire::KeyRangeView range = chain.Range(first + done, n, views);
    const CallReply reply = session->Call(FrameOp::kLookup, wire::EncodeLookup(lanes, range),
                                          deadline, {.gives_lease = true});
    auto answer = reply.status.ok()
                      ? wire::Decode<wire::LookupReply>(AsBytes(reply.parts.front().body))
                      : Result<wire::LookupReply>(reply.status);
    if (!answer.ok()) {
      Status why = reply.status;
      if (why.ok()) {  // it does not speak our language
        session->Close();
        why = Unavailable("no answer that can be read");
      }
      const Miss miss = CountMissed(why, count - done);
      if (outcome.miss == Miss::kNone) outcome.miss = miss;
      break;
    }
    if (answer->lease_id != 0) state->parts.push_back({first + done, n, answer->lease_id});
    answer->found.resize(n, false);
    for (std::uint32_t i = 0; i < n && done + i < outcome.found.size(); ++i) {
      outcome.found[done + i] = answer->found[i];
    }
    answer->hits = std::min(answer->hits, n);
    outcome.hits += answer->hits;
    outcome.local += answer->local;
    outcome.peer += answer->peer;
    if (outcome.miss == Miss::kNone) outcome.miss = FromWire(answer->miss_reason);
    if (kind_ == NamespaceKind::kChain && answer->hits < n) break;
    done += n;
  }
  if (!state->parts.empty()) outcome.lease = Lease(state);
  return outcome;
}

std::uint32_t Client::Delete(const Chain& chain, std::uint32_t first, std::uint32_t count,
                             Lane lane, Budget budget) {
  const CallGate::Pass pass(gate_);
  first = std::min(first, chain.size());
  count = std::min(count, chain.size() - first);
  const auto session = keeper_->Current();
  const Deadline deadline = DeadlineOf(budget);
  std::uint32_t deleted = 0;
  std::vector<std::string_view> views;
  for (std::uint32_t done = 0; session && done < count;) {
    const std::uint32_t n = chain.Fitting(first + done, count - done);
    const wire::KeyRangeView range = chain.Range(first + done, n, views);
    const CallReply reply =
        session->Call(FrameOp::kDelete, wire::EncodeDelete(lane, range), deadline);
    if (!reply.status.ok()) break;
    const auto answer = wire::Decode<wire::DeleteReply>(AsBytes(reply.parts.front().body));
    if (answer.ok()) deleted += std::min(answer->deleted, n);
    done += n;
  }
  return deleted;
}

bool Client::Renew(const Lease& lease, Budget budget) {
  const CallGate::Pass pass(gate_);
  const auto session = lease ? SessionOf(lease) : nullptr;
  if (!session) return false;
  const Deadline deadline = DeadlineOf(budget);
  for (const Lease::State::Part& part : lease.state_->parts) {
    const CallReply reply =
        session->Call(FrameOp::kRenew, wire::Encode(wire::RenewRequest{part.id}), deadline);
    if (!reply.status.ok()) return false;
    const auto answer = wire::Decode<wire::RenewReply>(AsBytes(reply.parts.front().body));
    if (!answer.ok() || !answer->renewed) return false;
  }
  return true;
}

Result<std::vector<PoolUsage>> Client::Stat(Budget budget) {
  const CallGate::Pass pass(gate_);
  const Deadline deadline = DeadlineOf(budget);
  const auto session = keeper_->WaitForCurrent(deadline);
  if (!session) {
    const Status why = keeper_->status();
    return why.ok() ? DeadlineExceeded("client: no agent answered in time") : why;
  }
  const CallReply reply = session->Call(FrameOp::kStat, "", deadline);
  if (!reply.status.ok()) return reply.status;
  KVF_ASSIGN_OR_RETURN(auto answer,
                       wire::Decode<wire::StatReply>(AsBytes(reply.parts.front().body)));
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
  out.missed_deadline = counts_.missed_deadline;
  out.missed_refused = counts_.missed_refused;
  out.puts_dropped = counts_.puts_dropped;
  out.corrupt = counts_.corrupt;
  out.connects = keeper_->connects();
  return out;
}

}  // namespace kvfabric
