#include "agent/cluster/peer_desk.h"

#include <algorithm>
#include <utility>

#include "agent/cluster/incoming_block.h"
#include "common/log.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMaxIdsPerMessage = 65'536;

BlockOrigin OriginOf(OfferReason reason) {
  switch (reason) {
    case OfferReason::kSpill:
      return BlockOrigin::kSpill;
    case OfferReason::kReplica:
      return BlockOrigin::kReplica;
    case OfferReason::kDrain:
      return BlockOrigin::kDrain;
  }
  return BlockOrigin::kReplica;
}

// True when the block is here and stays. A copy that only passes through for a reader would go with
// its last pin, while the giver counts it as moved or stored.
bool KeepsIt(PoolNode& pool, const KeyId& id, OfferReason reason) {
  if (!pool.engine().Contains(id) || !pool.engine().Keep(id)) return false;
  // The giver's copy goes: this one is not the one to lose first.
  if (reason != OfferReason::kReplica) pool.engine().SetHasOtherHolder(id, false);
  return true;
}

}  // namespace

PeerDesk::PeerDesk(const NodeContext& context, const PoolTable& pools)
    : context_(context), pools_(pools) {}

PeerDesk::SessionId PeerDesk::OnSessionOpen(const PeerIdentity& peer) {
  const NodeIndex node = context_.names->Intern(peer.node_name);
  const SessionId session = context_.leases->OpenSession();
  {
    MutexLock lock(mu_);
    sessions_.emplace(session, Session{peer, node});
  }
  if (node != kNoNode) {
    for (const PoolRef& pool : pools_.All()) pool->feed().NoteBoot(node, peer.boot_epoch);
  }
  LogInfo("peer session opened", {{"peer", peer.node_name}, {"boot_epoch", peer.boot_epoch}});
  return session;
}

void PeerDesk::OnSessionClosed(SessionId session) {
  {
    MutexLock lock(mu_);
    if (sessions_.erase(session) == 0) return;
  }
  context_.leases->CloseSession(session);
}

Result<PeerDesk::Session> PeerDesk::Find(SessionId session) const {
  MutexLock lock(mu_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return Unauthenticated("peer session: unknown or closed");
  return found->second;
}

Result<PoolRef> PeerDesk::FindPool(const std::string& pool_uid) const {
  PoolRef pool = pools_.Find(pool_uid);
  if (pool == nullptr) return NotFound("pool " + pool_uid + ": not on this node");
  return pool;
}

void PeerDesk::NoteEpoch(const PoolRef& pool, NodeIndex peer, std::uint64_t map_epoch) const {
  const SharedRouting routing = pool->routing();
  if (routing != nullptr && routing->epoch() >= map_epoch) return;
  context_.refresh_map(pool->uid(), peer,
                       Deadline::After(*context_.clock, std::chrono::milliseconds(1000)), [] {});
}

KeepaliveState PeerDesk::OnKeepalive(SessionId /*session*/) {
  MutexLock lock(state_mu_);
  return state_;
}

std::uint64_t PeerDesk::MapEpoch(const std::string& pool_uid) const {
  const PoolRef pool = pools_.Find(pool_uid);
  const SharedRouting routing = pool != nullptr ? pool->routing() : nullptr;
  return routing != nullptr ? routing->epoch() : 0;
}

void PeerDesk::RefreshState() {
  KeepaliveState state;
  for (const PoolRef& pool : pools_.All()) {
    pool->promises().Fade(context_.clock->Now());
    state.pools.push_back(pool->Coldness());
    state.pools.back().free_bytes -=
        std::min(state.pools.back().free_bytes, pool->promises().promised_bytes());
  }
  state.inflight_bytes = fetched_bytes_.exchange(0);
  state.draining = draining_.load();
  MutexLock lock(state_mu_);
  state_ = std::move(state);
}

Result<AnnounceReply> PeerDesk::OnAnnounce(SessionId session, const AnnounceRequest& request) {
  KVF_ASSIGN_OR_RETURN(const Session from, Find(session));
  KVF_ASSIGN_OR_RETURN(const PoolRef pool, FindPool(request.pool_uid));
  const SharedRouting routing = pool->routing();
  if (routing != nullptr && request.map_epoch < routing->epoch()) {
    return Aborted("announce: stale epoch " + std::to_string(request.map_epoch) +
                   ", this node has " + std::to_string(routing->epoch()));
  }
  if (routing == nullptr || request.map_epoch > routing->epoch()) {
    // Slots may be ours in that map which are not yet; the holder tries again in 50 ms.
    NoteEpoch(pool, from.node, request.map_epoch);
    return Unavailable("announce: epoch " + std::to_string(request.map_epoch) +
                       " is not known here yet");
  }
  return pool->feed().Apply(from.node, from.peer.boot_epoch, request);
}

void PeerDesk::OnLocate(SessionId session, LocateRequest request, Deadline deadline,
                        Completion<LocateReply> done) {
  Result<Session> from = Find(session);
  Result<PoolRef> pool = FindPool(request.pool_uid);
  if (!from.ok() || !pool.ok()) {
    done(from.ok() ? pool.status() : from.status());
    return;
  }
  if (request.keys.size() > kMaxIdsPerMessage) {
    done(InvalidArgument("locate: too many keys in one message"));
    return;
  }
  NoteEpoch(*pool, from->node, request.map_epoch);
  Locator& locator = (*pool)->locator();
  // The call keeps its pool.
  auto keep = [pool = *pool, done = std::move(done)](Result<LocateReply> reply) {
    done(std::move(reply));
  };
  locator.Answer(std::move(request), deadline, std::move(keep));
}

Result<LeaseReply> PeerDesk::OnLease(SessionId session, const LeaseRequest& request) {
  KVF_ASSIGN_OR_RETURN(const PoolRef pool, FindPool(request.pool_uid));
  if (request.ids.size() > kMaxIdsPerMessage) {
    return InvalidArgument("lease: too many blocks in one message");
  }
  LeaseReply reply;
  reply.granted.assign(request.ids.size(), false);
  reply.lengths.assign(request.ids.size(), 0);
  std::vector<PinnedBlock> blocks;
  std::vector<std::size_t> places;
  std::vector<KeyId> missing;
  for (std::size_t at = 0; at < request.ids.size(); ++at) {
    std::optional<PinnedBlock> block = pool->engine().PinById(request.ids[at]);
    if (!block) {
      missing.push_back(request.ids[at]);
      continue;
    }
    reply.lengths[at] = block->header().length_bytes;
    blocks.push_back(std::move(*block));
    places.push_back(at);
  }
  if (!missing.empty()) {
    // Some owner believes that we have them.
    pool->metrics().leases_refused.Add(static_cast<double>(missing.size()));
    pool->announcer().Correct(missing);
  }
  const LeaseTable::Prefix prefix = blocks.empty()
                                        ? LeaseTable::Prefix{}
                                        : context_.leases->GrantPrefix(session, std::move(blocks));
  std::vector<KeyId> touched;
  for (std::size_t at = 0; at < places.size(); ++at) {
    if (at < prefix.granted) {
      reply.granted[places[at]] = true;
      touched.push_back(request.ids[places[at]]);
    } else {
      reply.lengths[places[at]] = 0;
    }
  }
  if (!touched.empty()) pool->engine().Touch(touched);
  reply.lease_id = prefix.lease;
  reply.lease = context_.leases->ttl();
  return reply;
}

void PeerDesk::OnRelease(SessionId session, const std::vector<std::uint64_t>& lease_ids) {
  for (const std::uint64_t lease : lease_ids) {
    static_cast<void>(context_.leases->Release(session, lease));
  }
}

bool PeerDesk::OthersHaveRoom(const PoolNode& pool, const OfferRequest& request,
                              NodeIndex sender) const {
  std::uint64_t bytes = 0;
  for (const std::uint64_t length : request.lengths) bytes += length;
  for (const auto& [node, link] : context_.peers->UpLinks()) {
    const KeepaliveState state = link->peer_state();
    if (state.draining || node == sender) continue;
    for (const PoolColdness& coldness : state.pools) {
      if (coldness.pool_uid == pool.uid() && coldness.free_bytes >= bytes) return true;
    }
  }
  return false;
}

Result<OfferReply> PeerDesk::OnOffer(SessionId session, const OfferRequest& request) {
  KVF_ASSIGN_OR_RETURN(const Session from, Find(session));
  KVF_ASSIGN_OR_RETURN(const PoolRef pool, FindPool(request.pool_uid));
  if (request.ids.size() != request.lengths.size() || request.ids.size() != request.ages.size() ||
      request.ids.size() > kMaxIdsPerMessage) {
    return InvalidArgument("offer: ids, lengths and ages differ in number, or are too many");
  }
  OfferReply reply;
  if (draining_.load()) {
    // Not even "has it": what is here goes away with this node.
    reply.answers.assign(request.ids.size(), OfferAnswer::kNo);
    return reply;
  }
  const std::chrono::microseconds own_coldest = pool->Coldness().coldest_age;
  const auto free_bytes = [&pool] { return pool->FreeBytes(); };
  // What moves to save it pushes nothing out here while another peer has room: the sender's view of
  // who has is up to a keepalive old.
  const bool only_room =
      request.reason != OfferReason::kReplica && OthersHaveRoom(*pool, request, from.node);
  for (std::size_t at = 0; at < request.ids.size(); ++at) {
    if (KeepsIt(*pool, request.ids[at], request.reason)) {
      reply.answers.push_back(OfferAnswer::kHasIt);
      continue;
    }
    // Replicas are owed to the writer. Anything else must fit, or be warmer than what it pushes
    // out; in a drain clearly so: blocks of one age would take each other's place and all be called
    // moved. Who spills has kept that margin already.
    const auto margin =
        request.reason == OfferReason::kDrain ? own_coldest / 10 : std::chrono::microseconds{0};
    const bool wanted = request.reason == OfferReason::kReplica ||
                        pool->promises().Take(request.lengths[at], free_bytes) ||
                        (!only_room && request.ages[at] + margin < own_coldest);
    reply.answers.push_back(wanted ? OfferAnswer::kPush : OfferAnswer::kNo);
  }
  return reply;
}

std::uint32_t PeerDesk::OnDelete(SessionId /*session*/, const DeleteAtPeerRequest& request) {
  const PoolRef pool = pools_.Find(request.pool_uid);
  if (pool == nullptr) return 0;
  std::uint32_t deleted = 0;
  for (const KeyId& id : request.ids) deleted += pool->engine().Delete(id) ? 1U : 0U;
  return deleted;
}

std::string PeerDesk::OnMapRequest(SessionId /*session*/, const std::string& pool_uid) {
  const PoolRef pool = pools_.Find(pool_uid);
  const SharedRouting routing = pool != nullptr ? pool->routing() : nullptr;
  if (routing == nullptr) return {};
  const Result<std::vector<std::byte>> bytes = SerializeShardMap(routing->map());
  return bytes.ok() ? std::string(AsText(*bytes)) : std::string();
}

std::optional<PinnedBlock> PeerDesk::OnFetch(SessionId session, const std::string& /*pool_uid*/,
                                             std::uint64_t lease_id, const KeyId& id) {
  std::optional<PinnedBlock> block = context_.leases->Find(session, lease_id, id);
  if (block) fetched_bytes_.fetch_add(block->header().length_bytes);
  return block;
}

Result<Reservation> PeerDesk::OnPush(SessionId /*session*/, const std::string& pool_uid,
                                     OfferReason reason, BlockHeader header) {
  KVF_ASSIGN_OR_RETURN(const PoolRef pool, FindPool(pool_uid));
  KVF_ASSIGN_OR_RETURN(BlockHeader accepted, AcceptHeader(*pool, std::move(header)));
  const KeyId id = accepted.id;
  const std::uint64_t bytes = accepted.length_bytes;
  accepted.spilled_in = accepted.spilled_in || reason == OfferReason::kSpill;
  accepted.has_other_holder = reason == OfferReason::kReplica;
  Result<Reservation> place = pool->engine().Reserve(std::move(accepted), OriginOf(reason));
  if (reason != OfferReason::kReplica) pool->promises().Fulfil(bytes);  // counted as used by now
  if (place.status().code() == StatusCode::kAlreadyExists && !KeepsIt(*pool, id, reason)) {
    return Unavailable("push: block " + id.ToString() + ": left as it came: push it again");
  }
  return place;
}

std::size_t PeerDesk::session_count() const {
  MutexLock lock(mu_);
  return sessions_.size();
}

}  // namespace kvfabric
